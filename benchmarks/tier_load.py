"""Loading cached pages or computing them again, in virtual time: cost against its two ends.

python -m benchmarks.tier_load --json docs/results/tier_load.json

Prompts are asked once, so that a store has their pages and the device has not, and then again: one
at a time, and at random times that keep the better of always and never busy for 70 % of the time.
Figures are mean seconds to the first token of the second time; `cost` is to be within 5 % of the
better of the other two in every cell.
"""

import argparse
import json
import random
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

from interlock.conf.hydra_edge import compose
from interlock.core.assemble import build_engine
from interlock.core.engine import Engine
from interlock.core.registry import load_registry
from interlock.core.request import HashedPrompt, Request, SamplingParams
from interlock.core.settings import Choice
from interlock.plugins.cache.tiering import PricedConfig
from interlock.plugins.executor import FixedConfig

POLICIES = ("always", "never", "cost")
LENGTHS = [256, 1024, 4096]
GB_PER_S = [0.3, 1.0, 2.0, 3.0, 5.0, 10.0, 30.0]
PROMPTS = 16
PAGE_SIZE, BUDGET = 16, 2048
BUSY = 0.7
PRICES = FixedConfig()


def request(index: int, length: int, arrival_s: float) -> Request:
    """Prompt `index % PROMPTS`, which shares nothing with the others."""
    block = index % PROMPTS
    prompt = HashedPrompt((block,), length, length)
    sampling = SamplingParams(max_tokens=1, ignore_eos=True)
    return Request(index, sampling=sampling, arrival_s=arrival_s, hashed_prompt=prompt)


def engine(load: str, length: int, gb_per_s: float, base: Any) -> Engine:
    """Room on the device for two prompts (or three, where there are several at once)."""
    registry = load_registry()
    tier = PricedConfig(latency_ms=1.0, gb_per_s=gb_per_s)
    choices = dict(base.choices)
    choices["cache/tiers"] = Choice("priced", tier)
    choices["cache/load"] = Choice(load, registry.chosen("cache/load", load).config)
    pages = 6 * -(-(length + 1) // PAGE_SIZE)
    cache = replace(base.cache, num_pages=pages, page_size=PAGE_SIZE, load_timeout_s=600.0)
    return build_engine(replace(base, choices=choices, cache=cache), registry)


def first_tokens_s(engine: Engine, requests: list[Request]) -> list[float]:
    """Seconds to the first token of each."""
    for one in requests:
        engine.submit(one)
    records = [output.finished for output in engine.outputs() if output.finished]
    return [record.chunk_times_s[0] - record.arrival_s for record in records]


def measure(load: str, length: int, gb_per_s: float, gap_s: float, base: Any) -> dict[str, Any]:
    """One cell; `gap_s` is the mean time between arrivals, 0 for one at a time."""
    served, dice = engine(load, length, gb_per_s, base), random.Random(1)
    for index in range(PROMPTS):
        first_tokens_s(served, [request(index, length, served.clock.now() + 60.0)])
    now_s, found = served.clock.now() + 60.0, []
    again = []
    for index in range(PROMPTS, 3 * PROMPTS):
        now_s += dice.expovariate(1 / gap_s) if gap_s else 1e3
        again.append(request(index, length, now_s))
    for group in [again] if gap_s else [[one] for one in again]:
        found += first_tokens_s(served, group)
    loads = served.core.loads
    facts = dict(loads.policy.facts()) if loads else {}
    served.close()
    return {"ttft_s": fmean(found), **facts}


def cell(length: int, gb_per_s: float, base: Any) -> list[dict[str, Any]]:
    """All policies, one at a time and at random times."""
    rows = []
    alone = {load: measure(load, length, gb_per_s, 0.0, base) for load in POLICIES}
    best_s = min(alone[load]["ttft_s"] for load in ("always", "never"))
    busy = {load: measure(load, length, gb_per_s, best_s / BUSY, base) for load in POLICIES}
    for arrivals, found in (("one at a time", alone), ("random", busy)):
        better_s = min(found[load]["ttft_s"] for load in ("always", "never"))
        rows.append(
            {
                "tokens": length,
                "gb_per_s": gb_per_s,
                "arrivals": arrivals,
                **{f"{load}_s": round(found[load]["ttft_s"], 6) for load in POLICIES},
                "cost_of_better": round(found["cost"]["ttft_s"] / better_s, 4),
                "cost_facts": {k: v for k, v in found["cost"].items() if k != "ttft_s"},
            }
        )
    return rows


def facts(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """What is recorded."""
    return {
        "command": "python -m benchmarks.tier_load --json docs/results/tier_load.json",
        "step_ms": PRICES.step_ms,
        "token_ms": PRICES.token_ms,
        "kv_bytes_per_token": PRICES.kv_bytes_per_token,
        "latency_ms": 1.0,
        "prompts": PROMPTS,
        "busy": BUSY,
        "worst_cost_of_better": max(row["cost_of_better"] for row in rows),
        "rows": rows,
    }


def main() -> None:
    """Print the cells; write them with --json."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--lengths", type=int, nargs="+", default=LENGTHS, metavar="TOKENS")
    parser.add_argument("--gb-per-s", type=float, nargs="+", default=GB_PER_S, metavar="RATE")
    asked = parser.parse_args()
    base = compose(
        ["executor=fixed", "model=tiny-gqa", "cache/tiers=priced",
         f"scheduler.budget_tokens={BUDGET}", "threads=1"], load_registry(),
    )  # fmt: skip
    rows = []
    for length in asked.lengths:
        for gb_per_s in asked.gb_per_s:
            for row in cell(length, gb_per_s, base):
                rows.append(row)
                shown = " ".join(f"{load} {row[f'{load}_s']:9.4f}" for load in POLICIES)
                print(
                    f"{length:6d} tokens {gb_per_s:5.1f} GB/s {row['arrivals']:13s} {shown} s, "
                    f"cost/better {row['cost_of_better']:.3f}",
                    flush=True,
                )
            if asked.json:
                asked.json.write_text(json.dumps(facts(rows), indent=1) + "\n")
    print(f"worst {max(row['cost_of_better'] for row in rows):.3f}")


if __name__ == "__main__":
    main()
