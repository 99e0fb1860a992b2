"""What hits that end inside a page save on a recorded trace, by page size.

    python benchmarks/partial_pages.py --trace mooncake_conversation.jsonl.gz \
        --json docs/results/partial_pages.json

The first requests of the Mooncake conversation trace with their block ids expanded to tokens, one
at a time through the engine's own cache (radix, LRU, a pool of 960,000 tokens), with and without
parts of pages. Prompts of that trace part from each other between blocks of 512 tokens, so pages
whose size divides 512 have no parts to save; others lose what follows their last whole page.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import track

sys.path.insert(0, str(Path(__file__).parents[1]))  # started as a file or as a module

from benchmarks.beside.needs import absent
from interlock.conf.hydra_edge import compose
from interlock.core.assemble import build_engine
from interlock.core.cache_spec import CacheLayout
from interlock.core.kv_cache import KVCache
from interlock.core.request import Request, RequestId
from interlock.core.token_sequence import TokenSequence
from interlock.driver.run import make_entries
from interlock.plugins.cache.eviction.lru import LRUEviction
from interlock.plugins.cache.paged import PagedAllocator
from interlock.plugins.cache.radix import RadixIndex

POOL_TOKENS = 960_000
SIZES = (96, 384, 512)


def read(path: Path, count: int) -> list[Request]:
    """The first requests of the trace, in order of arrival, with token ids."""
    overrides = ["executor=fixed", "workload=trace", f"workload.path={path}", "progress=false"]
    config = compose([*overrides, "cache.page_size=512", "cache.num_pages=1000"])
    engine = build_engine(config)
    entries = [one for one in make_entries(config, engine) if isinstance(one, Request)]
    return sorted(entries, key=lambda one: one.arrival_s)[:count]


def tokens_of(request: Request) -> tuple[int, ...]:
    """Token j of block b is the number 512 b + j."""
    prompt = request.hashed_prompt
    assert prompt is not None
    blocks = np.array(prompt.block_ids, dtype=np.int64)[:, None] * prompt.block_tokens
    flat = (blocks + np.arange(prompt.block_tokens)).reshape(-1)[: prompt.num_tokens]
    return tuple(flat.tolist())


def play(requests: Sequence[Request], page_size: int, parts: bool) -> dict[str, Any]:
    """Prompt tokens, those that a hit gave, and those of them inside a page."""
    pages = POOL_TOKENS // page_size
    longest = max(one.num_prompt_tokens for one in requests)
    cache = KVCache(
        layout=CacheLayout.of(()), allocators=[PagedAllocator(pages)],
        index=RadixIndex(pages, parts), policy=LRUEviction(), page_size=page_size,
        max_requests=1, max_tokens=longest + 1, max_step_tokens=longest + 1,
    )  # fmt: skip
    prompt = hit = 0
    for number, one in enumerate(track(requests, f"{page_size}, parts={parts}")):
        asked = Request(number, tokens_of(one))
        sequence = TokenSequence(asked, page_size, 0)
        match = cache.match(b"", sequence)
        count = asked.num_prompt_tokens
        prompt, hit = prompt + count, hit + match.tokens
        now_s = float(number)
        holding = cache.open(RequestId(number), b"", sequence, None, count, match, now_s)
        assert holding is not None, "one request at a time is always let in"
        grown = cache.grow(holding, match.tokens, count)
        assert grown, "a request alone has its pages"
        cache.index_computed(holding, count, now_s)
        cache.close(holding, now_s)
    return {
        "prompt_tokens": prompt,
        "hit_tokens": hit,
        "partial_tokens": cache.counters.partial_tokens,
    }


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--trace", type=Path, required=True, help="mooncake_conversation.jsonl.gz")
    parser.add_argument("--requests", type=int, default=1500, help="leading requests that count")
    parser.add_argument("--json", type=Path, help="write the result here")
    arguments = parser.parse_args()
    if not arguments.trace.is_file():
        absent(f"--trace {arguments.trace}: there is no such file")
    requests = read(arguments.trace, arguments.requests)
    cells = [
        {"page_size": size, "partial_pages": parts, **play(requests, size, parts)}
        for size in SIZES
        for parts in (False, True)
    ]
    report = {"requests": len(requests), "pool_tokens": POOL_TOKENS, "cells": cells}
    Console().print_json(json.dumps(report))
    if arguments.json:
        arguments.json.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
