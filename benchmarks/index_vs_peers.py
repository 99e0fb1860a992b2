"""Prefix indexes beside those of other engines: nanoseconds a prompt token, and tokens found.

    python benchmarks/index_vs_peers.py --json docs/results/index_vs_peers.json \\
        --vllm-python ENVIRONMENT/bin/python --sglang-python ENVIRONMENT/bin/python

The first 1,500 requests of the Mooncake conversation trace (its blocks expanded to token ids), one
after the other: match all but the last token, evict least recently used pages until the rest fits a
pool of 960,000 tokens, insert. All from ready token arrays, in CPU time of the thread; the median
of repeats. `index` is the index with policy and free list alone, `engine` the same requests through
the cache that the engine uses (KVCache: match, open, grow, index_computed, close), which checks
what components answer and keeps reference counts and page tables.

Peers run in environments of their own (benchmarks/beside/index_vllm.py, index_sglang.py): vLLM's
KVCacheManager with sha256 hashes, and SGLang's RadixCache with the free list of its allocator. One
that is not there is left out, with the reason. An LRU simulation on block numbers, without any
index, says how many tokens are to be found. The trace is in $INTERLOCK_DATA/traces, or in
../shared/data/traces beside the repository.
"""

import argparse
import gc
import gzip
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator
from importlib.metadata import version
from itertools import islice, repeat
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).parents[1]))  # started as a file or as a module

from benchmarks.beside.needs import absent
from interlock.core.batch import PageId, Pages
from interlock.core.cache_spec import CacheLayout, Full
from interlock.core.kv_cache import KVCache
from interlock.core.prefix_index import PrefixIndex, PrefixKey, Run
from interlock.core.request import Request, RequestId
from interlock.core.token_sequence import TokenSequence
from interlock.plugins.cache.block_hash import BlockHashIndex
from interlock.plugins.cache.chain_keys import CHAINS
from interlock.plugins.cache.eviction.lru import LRUEviction
from interlock.plugins.cache.paged import PagedAllocator
from interlock.plugins.cache.radix import RadixIndex

TRACE = Path(os.environ.get("INTERLOCK_DATA", "../shared/data"), "traces")
TRACE /= "mooncake_conversation.jsonl.gz"
BLOCK, POOL_TOKENS = 512, 960_000
INDEXES: dict[str, Callable[[int], PrefixIndex]] = {
    "radix": RadixIndex,
    "block_hash": lambda pages: BlockHashIndex(num_pages=pages),
    "block_hash hash=sha256": lambda pages: BlockHashIndex(CHAINS["sha256"](), pages),
}
FAST = ("radix", "block_hash")
MINI_SGLANG = "mini-sglang is not on the package index"


class Prompt(NamedTuple):
    """A request of the trace."""

    tokens: NDArray[np.int64]


def prompts(path: Path, count: int) -> Iterator[Prompt]:
    """The first requests of a trace; token i of block b is b * 512 + i."""
    with gzip.open(path, "rt") as file:
        for _, line in zip(range(count), file, strict=False):
            request = json.loads(line)
            blocks = np.array(request["hash_ids"], dtype=np.int64)
            tokens = (blocks[:, None] * BLOCK + np.arange(BLOCK)).reshape(-1)
            yield Prompt(tokens[: request["input_length"]].copy())


def expected_hits(requests: list[Prompt], page_size: int) -> int:
    """Tokens that a least-recently-used cache of whole pages finds: deeper pages go first.

    Pages are known by their first token: ids of blocks stand for all tokens before as well.
    """
    pages: dict[int, None] = {}
    hits = 0
    for prompt in requests:
        count = len(prompt.tokens) // page_size
        keys = prompt.tokens[: count * page_size : page_size].tolist()
        known = 0
        while known < (len(prompt.tokens) - 1) // page_size and keys[known] in pages:
            known += 1
        hits += known * page_size
        deque(map(pages.pop, keys, repeat(None)), maxlen=0)
        surplus = max(0, len(pages) + count - POOL_TOKENS // page_size)
        deque(map(pages.__delitem__, list(islice(pages, surplus))), maxlen=0)
        pages.update(zip(reversed(keys), repeat(None)))
    return hits


class BareCache:
    """An index with a policy and a free list, and just what serving one request at a time needs."""

    def __init__(self, index: PrefixIndex, page_size: int) -> None:
        self.index, self.page_size = index, page_size
        self.policy, self.free = LRUEviction(), PagedAllocator(POOL_TOKENS // page_size)
        self.now_s = 0.0

    def serve(self, tokens: NDArray[np.int64]) -> int:
        """Tokens of the prompt that were found."""
        self.now_s += 1
        count = len(tokens) // self.page_size
        rows = tokens[: count * self.page_size].reshape(count, self.page_size)
        hit = self.index.match(PrefixKey(b"", rows[: (len(tokens) - 1) // self.page_size]))
        known = len(hit)
        pinned = self._use(hit)
        self._make_room(count - known, pinned)
        last = pinned
        if count > known:
            own = self.free.take(RequestId(0), count - known)
            assert own is not None
            after = PageId(int(hit[-1])) if known else None
            pages, kept = self.index.insert(PrefixKey(b"", rows[known:]), after, own)
            if kept < len(own):
                self.free.give_back(own[: len(own) - kept])
            last = self._use(pages)
        if last is not None and not last.children:
            self.policy.add(last)
        return known * self.page_size

    def _use(self, pages: Pages) -> Run | None:
        """The run that ends with these pages, used now and for now no candidate."""
        if not len(pages):
            return None
        page = PageId(int(pages[-1]))
        self.index.isolate(page)
        last = run = self.index.run_of(page)
        assert last is not None
        self.policy.discard(last)
        while run is not None:
            run.last_used_s = self.now_s
            run = run.parent
        return last

    def _make_room(self, pages: int, pinned: Run | None) -> None:
        while (missing := pages - self.free.free_pages()) > 0:
            run = self.policy.choose()
            assert run is not None
            parent = run.parent
            self.free.give_back(self.index.drop_tail(run, min(missing, len(run.pages))))
            if len(run.pages):
                self.policy.add(run)
            elif parent is not None and not parent.children and parent is not pinned:
                self.policy.add(parent)


def index_alone(name: str, page_size: int, requests: list[Prompt]) -> tuple[int, float]:
    """Tokens found and seconds."""
    cache = BareCache(INDEXES[name](POOL_TOKENS // page_size), page_size)
    start = time.thread_time()
    hits = sum(cache.serve(prompt.tokens) for prompt in requests)
    return hits, time.thread_time() - start


def in_the_engine(name: str, page_size: int, requests: list[Prompt]) -> tuple[int, float]:
    """The same through the cache as the engine uses it."""
    pages = POOL_TOKENS // page_size
    longest = max(len(prompt.tokens) for prompt in requests)
    cache = KVCache(
        CacheLayout((), (Full(),)), [PagedAllocator(pages)], INDEXES[name](pages),
        LRUEviction(), page_size, 1, longest, longest,
    )  # fmt: skip
    sequences = [
        TokenSequence(Request(i, prompt_token_ids=prompt.tokens), page_size, 0)  # type: ignore[arg-type]
        for i, prompt in enumerate(requests)
    ]
    hits, start = 0, time.thread_time()
    for number, sequence in enumerate(sequences):
        now_s, length = float(number), sequence.length
        match = cache.match(b"", sequence)
        hits += match.tokens
        holding = cache.open(RequestId(number), b"", sequence, None, length, match, now_s)
        assert holding is not None
        assert cache.grow(holding, match.tokens, length)
        cache.index_computed(holding, length, now_s)
        cache.close(holding, now_s)
        cache.check()
    return hits, time.thread_time() - start


def peer(python: Path | None, side: str, page_size: int, requests: list[Prompt]) -> dict[str, Any]:
    """What a peer's side printed, or the reason why it is left out."""
    if python is None:
        return {"left out": f"no --{side}-python was given"}
    script = Path(__file__).with_name("beside") / f"index_{side}.py"
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "prompts.npz")
        ends = np.cumsum([len(prompt.tokens) for prompt in requests])
        np.savez(file, tokens=np.concatenate([p.tokens for p in requests]), ends=ends)
        command = [str(python), "-P", str(script), str(file), str(POOL_TOKENS), str(page_size)]
        ran = subprocess.run(command, capture_output=True, text=True, cwd="/", check=False)
    if ran.returncode:
        last = (ran.stderr.strip() or "no message").splitlines()[-1]
        return {"left out": f"{script.name} failed: {last}"}
    found: dict[str, Any] = json.loads(ran.stdout.splitlines()[-1])
    return found


def measured(
    run: Callable[[str, int, list[Prompt]], tuple[int, float]],
    name: str, page_size: int, requests: list[Prompt], repeats: int,
) -> dict[str, Any]:  # fmt: skip
    """Median of repeats."""
    total, times, hits = sum(len(prompt.tokens) for prompt in requests), [], set()
    for _ in range(repeats):
        gc.collect()
        found, seconds = run(name, page_size, requests)
        hits.add(found)
        times.append(seconds / total * 1e9)
    (found,) = hits
    return {"hit_tokens": found, "ns_per_token": round(statistics.median(times), 2)}


def main() -> None:
    """Print one line a cell."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", type=Path, help="write the numbers to this file")
    parser.add_argument("--requests", type=int, default=1500, help="of the trace, the first ones")
    parser.add_argument("--repeats", type=int, default=3, help="of our cells; medians are kept")
    parser.add_argument("--page-sizes", type=int, nargs="+", default=[1, 16], help="tokens a page")
    parser.add_argument("--vllm-python", type=Path, help="a Python with vLLM; at page size 16 only")
    parser.add_argument("--sglang-python", type=Path, help="a Python with SGLang")
    args = parser.parse_args()
    if not TRACE.is_file():
        absent(f"{TRACE} is absent; INTERLOCK_DATA names the folder that holds traces/")
    requests = list(prompts(TRACE, args.requests))
    cells: list[dict[str, Any]] = []

    def note(**cell: Any) -> None:
        cells.append(cell)
        print(json.dumps(cell), flush=True)

    for size in args.page_sizes:
        note(page_size=size, what="expected", hit_tokens=expected_hits(requests, size))
        for name in INDEXES:
            if size == 1 and name not in FAST:
                continue  # a digest for each token
            for what, run in (("index", index_alone), ("engine", in_the_engine)):
                found = measured(run, name, size, requests, args.repeats)
                note(page_size=size, what=what, index=name, **found)
        note(page_size=size, what="SGLang", **peer(args.sglang_python, "sglang", size, requests))
        if size == 16:
            note(page_size=size, what="vLLM", **peer(args.vllm_python, "vllm", size, requests))
    note(what="mini-sglang", **{"left out": MINI_SGLANG})
    report = {
        "requests": len(requests),
        "prompt_tokens": sum(len(prompt.tokens) for prompt in requests),
        "pool_tokens": POOL_TOKENS,
        "cells": cells,
        "python": platform.python_version(),
        "numpy": version("numpy"),
        "interlock": version("interlock"),
    }
    if args.json:
        args.json.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
