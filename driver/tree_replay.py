"""Replay of block ids through the engine's own cache, one request at a time, without an engine.

What `replay.blocks=engine` does but for time: pages form a tree (a leaf goes before what it
follows), only full pages are kept, a hit ends at the first miss, a request's own pages cannot go
while it runs. Requests never overlap and answers take no room, so that what the tree itself changes
of `replay.blocks=ids` can be told from what serving changes.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from interlock.core.allocator import KVAllocator
from interlock.core.cache_spec import CacheLayout
from interlock.core.errors import WorkloadError
from interlock.core.eviction import EvictionPolicy
from interlock.core.kv_cache import KVCache
from interlock.core.prefix_index import PrefixIndex, PrefixKey
from interlock.core.request import Request, RequestId
from interlock.core.token_sequence import TokenSequence

RUN_S = 1e-3
"""How long after its match a request is indexed and ends; a policy's clock is the arrivals."""


@dataclass(frozen=True)
class TreeHits:
    """Of all requests: full pages, those found, and those found that a hit may use.

    A hit leaves the prompt's last token to compute, so it never uses its last full page where
    nothing follows that.
    """

    pages: int
    found: int
    used: int
    evicted: int


def replay_tree(
    requests: Sequence[Request],
    page_size: int,
    allocator: KVAllocator,
    index: PrefixIndex,
    policy: EvictionPolicy,
    told: Callable[[int], None] = lambda _done: None,
) -> TreeHits:
    """Serve requests in arrival order; those that the pool cannot hold at once are passed over.

    Raises WorkloadError for a request that is known by tokens, not by the ids of its blocks.
    """
    longest = max((one.num_prompt_tokens for one in requests), default=0)
    cache = KVCache(
        layout=CacheLayout.of(()), allocators=[allocator], index=index, policy=policy,
        page_size=page_size, max_requests=1, max_tokens=longest + 1, max_step_tokens=longest + 1,
    )  # fmt: skip
    pages = found = used = 0
    now_s = 0.0
    for done, one in enumerate(sorted(requests, key=lambda one: one.arrival_s), start=1):
        if one.hashed_prompt is None:
            raise WorkloadError(f"request {one.index} has no block ids")
        sequence = TokenSequence(one, page_size, 0)
        full, tokens = one.num_prompt_tokens // page_size, one.num_prompt_tokens
        now_s = max(now_s + RUN_S, one.arrival_s)
        cache.expire(now_s)
        pages += full
        found += len(index.match(PrefixKey(b"", sequence.units(0, full))))
        match = cache.match(b"", sequence)
        used += len(match.pages)
        if -(-tokens // page_size) <= allocator.num_pages:
            holding = cache.open(RequestId(done), b"", sequence, None, tokens, match, now_s)
            assert holding is not None, "one request at a time is always let in"
            now_s += RUN_S
            grown = cache.grow(holding, match.tokens, tokens)
            assert grown, "a request alone has its pages"
            cache.index_computed(holding, tokens, now_s)
            cache.close(holding, now_s)
        told(done)
    return TreeHits(pages, found, used, cache.counters.evicted_pages)
