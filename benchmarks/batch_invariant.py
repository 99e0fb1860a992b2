"""Bit equality of numerics=batch_invariant over random batches, and what it costs.

    python benchmarks/batch_invariant.py                      # 1,000 batches, then the costs
    python benchmarks/batch_invariant.py --batches 100 --json out.json

A batch is a step with at least two requests, of an engine with random page size, token budget,
prefix index and drafter, serving random requests that share prefixes. Every logit of every
committed position is compared with the one of the same request run alone, bit for bit, for
tiny-gqa and tiny-mla in float32 and bfloat16; the same with numerics=fast, for contrast.
The cost is the time of the same work relative to numerics=fast, interleaved in this run.
"""

import argparse
import json
import platform
import statistics
import time
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table

from interlock.core.assemble import assemble
from interlock.core.engine import Engine
from interlock.core.request import Request, SamplingParams
from interlock.core.testing.logit_bits import LogitBits

MODELS = {"tiny-gqa": "gqa", "tiny-mla": "mla"}
DTYPES = ("float32", "bfloat16")
INDEXES = ("radix", "block_hash")
DRAFTERS = ("none", "ngram", "eagle")
PROMPT_TOKENS, OUTPUT_TOKENS = 60, 12


@dataclass
class Bits:
    """What was compared in one cell."""

    batches: int = 0
    rows: int = 0
    different: int = 0


def engine(model: str, dtype: str, numerics: str, *more: str) -> Engine:
    """One engine of this script's compositions."""
    return assemble(
        [
            f"model={model}", f"attention={MODELS[model]}", f"dtype={dtype}",
            f"numerics={numerics}", "threads=1", "progress=false", *more,
        ]
    )  # fmt: skip


def serve(made: Engine, requests: list[Request]) -> dict[int, list[int]]:
    """The output tokens of every request."""
    for request in requests:
        made.submit(request)
    ended = [output.finished for output in made.outputs() if output.finished]
    return {record.index: record.output_token_ids for record in ended}


def random_requests(draw: np.random.Generator, vocab: int) -> list[Request]:
    """Six requests, most with a prefix in common, greedy and sampled."""
    shared = draw.integers(3, vocab, PROMPT_TOKENS)
    requests = []
    for index in range(6):
        own = draw.integers(3, vocab, int(draw.integers(1, PROMPT_TOKENS)))
        prompt = [*shared[: int(draw.integers(0, PROMPT_TOKENS))], *own]
        sampling = SamplingParams(
            temperature=float(draw.choice([0.0, 0.8])), seed=index,
            max_tokens=int(draw.integers(1, OUTPUT_TOKENS)), ignore_eos=True,
        )  # fmt: skip
        requests.append(Request(index, tuple(map(int, prompt)), sampling))
    return requests


def compare(model: str, dtype: str, numerics: str, batches: int, console: Console) -> Bits:
    """Random engines until enough batches were compared."""
    alone = engine(model, dtype, numerics, "cache=none", "spec=none")
    watched = LogitBits(alone)
    bits, seed = Bits(), 0
    title = f"{model} {dtype} {numerics}"
    for _ in track(range(batches), title, console=console):
        if bits.batches >= batches:
            continue
        draw = np.random.default_rng(seed)
        seed += 1
        requests = random_requests(draw, alone.resolution.model.vocab_size)
        expected = [_alone(alone, watched, request) for request in requests]
        made = engine(
            model, dtype, numerics, f"cache={draw.choice(INDEXES)}",
            f"spec={draw.choice(DRAFTERS)}", f"cache.page_size={draw.choice([1, 4, 16])}",
            "cache.num_pages=512",
            f"scheduler.budget_tokens={draw.integers(16, 200)}",
        )  # fmt: skip
        together = LogitBits(made)
        serve(made, requests)
        bits.batches += together.shared_steps
        for (index, place), rows in together.rows.items():
            right = expected[index].get(place)
            if right is not None:  # a position past the request's end has no counterpart
                bits.rows += len(rows)
                bits.different += sum(not torch.equal(row, right) for row in rows)
    return bits


def _alone(made: Engine, watched: LogitBits, request: Request) -> dict[int, torch.Tensor]:
    watched.rows.clear()
    serve(made, [replace(request, index=0)])
    return {place: rows[0] for (_, place), rows in watched.rows.items()}


def cost(model: str, dtype: str, repeats: int, work: tuple[int, int, int]) -> float:
    """Time of numerics=batch_invariant / time of numerics=fast, median of interleaved pairs."""
    prompt, count, output = work
    draw = np.random.default_rng(0)
    engines = [engine(model, dtype, n, "cache=none") for n in ("batch_invariant", "fast")]
    ratios = []
    for repeat in range(repeats + 1):
        seconds = []
        for made in engines:
            vocab = made.resolution.model.vocab_size
            sampling = SamplingParams(max_tokens=output, ignore_eos=True)
            requests = [
                Request(i, tuple(map(int, draw.integers(3, vocab, prompt))), sampling)
                for i in range(count)
            ]
            start_s = time.perf_counter()
            serve(made, requests)
            seconds.append(time.perf_counter() - start_s)
        if repeat:  # the first one warms up
            ratios.append(seconds[0] / seconds[1])
    return statistics.median(ratios)


COSTS = {  # prompt tokens, requests, output tokens
    "decode, batch 1": (8, 1, 64),
    "decode, batch 8": (8, 8, 64),
    "decode, batch 32": (8, 32, 32),
    "prefill of 512 tokens": (512, 1, 1),
}


def main() -> None:
    """Parse arguments, compare, time, print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--batches", type=int, default=1000, help="random batches in all")
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--dtypes", nargs="+", choices=DTYPES, default=list(DTYPES))
    parser.add_argument("--repeats", type=int, default=5, help="pairs of runs of each cost")
    parser.add_argument("--costs", nargs="*", choices=COSTS, default=list(COSTS), metavar="WORK",
                        help=f"of: {'; '.join(COSTS)}")  # fmt: skip
    parser.add_argument("--json", type=Path, help="write the results to this file")
    args = parser.parse_args()
    torch.set_num_threads(1)
    console = Console()
    cells = [(model, dtype) for model in args.models for dtype in args.dtypes]
    each = -(-args.batches // len(cells))
    table = Table("model", "dtype", "numerics", "batches", "logit rows", "rows with other bits")
    report: dict[str, object] = {
        "torch": torch.__version__, "python": platform.python_version(), "bits": [], "cost": [],
    }  # fmt: skip
    found: list[dict[str, object]] = []
    for model, dtype in cells:
        for numerics in ("batch_invariant", "fast"):
            bits = compare(model, dtype, numerics, each, console)
            table.add_row(
                model, dtype, numerics, *map(str, (bits.batches, bits.rows, bits.different))
            )
            found.append({"model": model, "dtype": dtype, "numerics": numerics, **vars(bits)})
    console.print(table)
    costs = Table("time of batch_invariant / time of fast", *(f"{m} {d}" for m, d in cells))
    timed = {name: [cost(m, d, args.repeats, COSTS[name]) for m, d in cells] for name in args.costs}
    for name, ratios in timed.items():
        costs.add_row(name, *(f"{ratio:.2f}" for ratio in ratios))
    console.print(costs)
    report |= {"bits": found, "cost": timed, "cells": cells}
    if args.json:
        args.json.write_text(json.dumps(report, indent=1) + "\n")
    different = sum(int(str(b["different"])) for b in found if b["numerics"] == "batch_invariant")
    raise SystemExit(bool(different))


if __name__ == "__main__":
    main()
