"""Restoring a prompt's pages from a store against computing them again, on a real model.

python -m benchmarks.tier_restore --model smollm2 --json docs/results/tier_restore.json

Two prompts of 1,000 tokens take turns on a device with room for one of them, so that each time
one comes its pages have been evicted: with cache/load=always they come from the store, with never
they are computed. Figures are the median seconds to the first token, and what the store says it
took. Tokens must be the same.
"""

import argparse
import json
import sys
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))  # started as a file or as a module

from benchmarks.beside import needs
from interlock.core.assemble import assemble
from interlock.core.engine import Engine
from interlock.core.request import Request, RequestRecord, SamplingParams

PAGE_SIZE = 16


def prompt(tokens: int, salt: int) -> tuple[int, ...]:
    """Token ids that every vocabulary has."""
    return tuple(10 + (i * 7919 + salt * 104729 + i * i * 31) % 250 for i in range(tokens))


def serve(engine: Engine, index: int, tokens: int) -> RequestRecord:
    """One of the two prompts; everything that is saved is saved before it returns."""
    sampling = SamplingParams(max_tokens=4, ignore_eos=True)
    now_s = engine.clock.now()
    engine.submit(Request(index, prompt(tokens, index % 2), sampling, arrival_s=now_s))
    (record,) = [output.finished for output in engine.outputs() if output.finished]
    loads = engine.core.loads
    while loads is not None and loads.under_way:
        loads.transfers.wait(engine.clock, engine.clock.now() + 1.0)
        loads.collect(engine.clock.now())
    return record


def measure(load: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """The turns of one policy."""
    pages = -(-(arguments.tokens + 4) // PAGE_SIZE) + 2
    engine = assemble(
        [
            f"model={arguments.model}", f"threads={arguments.threads}", f"dtype={arguments.dtype}",
            f"cache/tiers={arguments.tier}", f"cache/load={load}", f"cache.num_pages={pages}",
            f"cache.page_size={PAGE_SIZE}", "cache.load_timeout_s=60", *arguments.override,
        ]
    )  # fmt: skip
    records = [serve(engine, index, arguments.tokens) for index in range(2 + arguments.turns)][2:]
    first_s = [record.chunk_times_s[0] - record.arrival_s for record in records]
    loads = engine.core.loads
    payload = loads.transfers.payload_bytes if loads else 0
    engine.close()
    return {
        "ttft_s": round(median(first_s), 5),
        "fastest_s": round(min(first_s), 5),
        "cached_tokens": [record.cached_tokens for record in records][-1],
        "payload_bytes": payload,
        "tokens": [list(record.output_token_ids) for record in records],
    }


def main() -> None:
    """Print both; write them with --json."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--tier", default="cpu")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--tokens", type=int, default=1000)
    parser.add_argument("--turns", type=int, default=6)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", type=Path)
    parser.add_argument("override", nargs="*")
    arguments = parser.parse_args()
    with needs.model():
        found = {load: measure(load, arguments) for load in ("always", "never")}
    assert found["always"]["tokens"] == found["never"]["tokens"], "restored rows differ"
    for each in found.values():
        del each["tokens"]
    times = found["never"]["ttft_s"] / found["always"]["ttft_s"]
    for load, each in found.items():
        print(f"cache/load={load}: {each}")
    print(f"restoring is {times:.1f} times as fast as computing")
    if arguments.json:
        given = {k: v for k, v in vars(arguments).items() if k != "json"}
        facts = {"asked": given, **found, "times_as_fast": round(times, 2)}
        arguments.json.write_text(json.dumps(facts, indent=1) + "\n")


if __name__ == "__main__":
    main()
