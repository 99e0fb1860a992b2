"""Replay of block ids against an eviction policy alone: `replay.blocks=ids`.

Each id is one page of one pool that all requests share. A request touches its blocks in order, the
earlier first, a microsecond apart; a block that is not there takes the place of the one that the
policy lets go. There is no tree: any block may go, also before one that follows it, and a block is
a hit whether or not those before it were. Nothing is pinned and no model time passes. This is how
papers state hit rates of traces; what an engine reaches is `replay.blocks=engine`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from interlock.core.errors import ContractError, WorkloadError
from interlock.core.eviction import EvictionPolicy
from interlock.core.prefix_index import Run
from interlock.core.request import Request

TOUCH_S = 1e-6
"""Time between two touches of one request, so that no two are at one instant."""


@dataclass(frozen=True)
class RequestHits:
    """One request's blocks, how many were there, and how many of those before the first miss."""

    index: int
    blocks: int
    hits: int
    prefix_hits: int


class BlockReplay:
    """A pool of `capacity` blocks under a policy: one-page runs without parents."""

    def __init__(self, policy: EvictionPolicy, capacity: int) -> None:
        self.policy = policy
        self.capacity = capacity
        self.requests: list[RequestHits] = []
        self.evicted = 0
        self.now_s = 0.0
        self._pages = np.arange(capacity, dtype=np.int32)
        self._blocks = np.zeros(capacity, dtype=np.int64)
        self._run_of: dict[int, Run] = {}
        self._free = list(range(capacity))

    def serve(self, request: Request) -> RequestHits:
        """Touch the request's blocks at its arrival, after everything before. O(log) a block."""
        assert request.hashed_prompt is not None
        self.now_s = max(request.arrival_s, self.now_s)
        while (old := self.policy.expired(self.now_s)) is not None:
            self._free.append(self._drop(old))
        ids = request.hashed_prompt.block_ids
        found = [self._touch(block, depth) for depth, block in enumerate(ids)]
        prefix = found.index(False) if False in found else len(found)
        hits = RequestHits(request.index, len(ids), sum(found), prefix)
        self.requests.append(hits)
        return hits

    def _touch(self, block: int, depth: int) -> bool:
        self.now_s += TOUCH_S
        run = self._run_of.get(block)
        if run is None:
            self._enter(block, depth)
            return False
        self.policy.discard(run)
        run.last_used_s = self.now_s
        run.uses += 1
        self.policy.used(run)
        self.policy.add(run)
        return True

    def _enter(self, block: int, depth: int) -> None:
        if not self._free:
            self._free.append(self._drop(self.policy.choose()))
        page = self._free.pop()
        self._blocks[page] = block
        run = Run(
            pages=self._pages[page : page + 1],
            parent=None,
            depth_pages=depth,
            salt=b"",
            created_s=self.now_s,
            last_used_s=self.now_s,
            uses=1,
            keys=self._blocks[page : page + 1],
        )
        self._run_of[block] = run
        self.policy.entered(run, 1)
        self.policy.add(run)

    def _drop(self, run: Run | None) -> int:
        """Let go of what the policy gave; its page."""
        block = None if run is None else int(self._blocks[run.pages[0]])
        if run is None or block is None or self._run_of.get(block) is not run:
            raise ContractError(f"{type(self.policy).__name__} let go of what is no candidate")
        self.policy.leaving(run, 1)
        page = int(run.pages[0])
        del self._run_of[block]
        self.evicted += 1
        self.policy.forgotten(run)
        return page

    def summary(self) -> dict[str, int | float]:
        """Counts and shares over all requests so far."""
        blocks = sum(one.blocks for one in self.requests)
        hits = sum(one.hits for one in self.requests)
        prefix_hits = sum(one.prefix_hits for one in self.requests)
        return {
            "requests": len(self.requests),
            "blocks": blocks,
            "hits": hits,
            "hit_rate": hits / blocks if blocks else 0.0,
            "prefix_hits": prefix_hits,
            "prefix_hit_rate": prefix_hits / blocks if blocks else 0.0,
            "evicted_blocks": self.evicted,
            "capacity_blocks": self.capacity,
        }


def replay(
    policy: EvictionPolicy,
    requests: Sequence[Request],
    capacity: int,
    told: Callable[[int], None] = lambda _done: None,
) -> BlockReplay:
    """Serve requests in arrival order; `told` hears after each how many are done.

    Raises WorkloadError for a request that is known by tokens, not by the ids of its blocks.
    """
    run = BlockReplay(policy, capacity)
    for done, request in enumerate(sorted(requests, key=lambda one: one.arrival_s), start=1):
        if request.hashed_prompt is None:
            raise WorkloadError(
                f"request {request.index} has no block ids; replay.blocks=ids needs workload=trace"
            )
        run.serve(request)
        told(done)
    return run
