"""The waiting line and the running requests: who is where, admission to pages, preemption.

The oldest admitted request is never a victim, so whoever was admitted can finish.
"""

from bisect import insort
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from interlock.core.batch import NO_DRAFT, Ints
from interlock.core.errors import ContractError
from interlock.core.kv_cache import Holding, KVCache, Match
from interlock.core.live import Live
from interlock.core.loads import Loads
from interlock.core.request import RequestId, Status
from interlock.core.running import Running
from interlock.core.scheduler import (
    AdmissionPolicy,
    ChunkingPolicy,
    Load,
    OrderPolicy,
    VictimPolicy,
)


@dataclass(frozen=True)
class Policies:
    """The four scheduler policies and their limits."""

    order: OrderPolicy
    admission: AdmissionPolicy
    chunking: ChunkingPolicy
    victim: VictimPolicy
    budget_tokens: int
    max_requests: int


@dataclass(slots=True)
class PlannerCounters:
    """What the policies did, for the activity report."""

    admissions: int = 0
    refused_admissions: int = 0
    preemptions: int = 0
    chunks: int = 0


class Queues:
    """Every request that has not ended is in exactly one of `waiting` and `running`.

    `columns` has what changes with every step of the running ones.
    """

    def __init__(self, policies: Policies, cache: KVCache) -> None:
        self.policies = policies
        self.waiting: list[Live] = []
        self.running: dict[RequestId, Live] = {}
        self.columns = Running(policies.max_requests)
        self.counters = PlannerCounters()
        self._cache = cache
        self._keys: dict[RequestId, tuple[Any, RequestId]] = {}
        self._admissions = 0
        self.loads: Loads | None = None
        self._order: Ints | None = None
        """Slots of the running requests in the order policy's order; None: to be sorted."""

    def ready(self) -> Ints:
        """Slots of the running requests in no step in flight, in the order policy's order."""
        if self._order is None:
            lives = sorted(self.running.values(), key=lambda live: self._keys[live.id])
            slots = [live.holding.slot for live in lives if live.holding is not None]
            self._order = np.array(slots, dtype=np.int64)
        flying = self.columns.in_flight[self._order]
        return self._order[~flying] if flying.any() else self._order

    def enqueue(self, live: Live) -> None:
        """Add a new or preempted request to the waiting line."""
        self._keys[live.id] = (self.policies.order.key(live.view), live.id)
        insort(self.waiting, live, key=lambda other: self._keys[other.id])

    def leave(self, live: Live, now_s: float) -> None:
        """Remove an ended request and give its pages back."""
        if live.holding is not None:
            self._stop(live, live.holding, now_s)
        elif live in self.waiting:
            self.waiting.remove(live)
        self._keys.pop(live.id, None)
        if self.loads is not None:
            self.loads.leave(live)

    def _stop(self, live: Live, holding: Holding, now_s: float) -> None:
        self._cache.close(holding, now_s)
        self.columns.part(holding.slot)
        live.holding, self._order = None, None
        del self.running[live.id]

    def extend(self, live: Live, token: int, now_s: float) -> None:
        """One more token for a request that had none pending; it may have lost its pages."""
        live.record.output_token_ids.append(token)
        if live.holding is None:
            live.refresh_view()
            self.enqueue(live)
            return
        self.columns.length[live.holding.slot] += 1
        self.columns.last[live.holding.slot] = token

    def restart(self, live: Live, output: Sequence[int], now_s: float) -> None:
        """Another output for a request, up to a token that nobody computed; it waits for pages."""
        if live.holding is not None:
            self._stop(live, live.holding, now_s)
        live.sequence.rewrite(output)
        live.high_water = live.sequence.length - 1
        live.record.status = Status.WAITING
        live.refresh_view()
        self.enqueue(live)

    def release(self, now_s: float) -> bool:
        """Take the pages of the youngest of the requests that rest; False if none does.

        Whoever waits for pages can then start, so that those that rest need not wait for it.
        """
        resting = [live for live in self.running.values() if live.rests and not live.in_flight]
        if not resting:
            return False
        self._preempt(max(resting, key=_age), now_s)
        return True

    def load(
        self, now_s: float, admitted: int, room: list[tuple[int, int]], promised: list[int]
    ) -> Load:
        """The table with least room (see KVCache.room) as the admission policy sees it.

        In this step `admitted` others were promised `promised` pages of each table.
        """
        rooms = [(free - p, need) for (free, need), p in zip(room, promised, strict=True)]
        table = min(range(len(rooms)), key=lambda t: rooms[t][0] - rooms[t][1])
        total = self._cache.pools[table].num_pages
        return Load(now_s, len(self.running) + admitted, rooms[table][0], total, rooms[table][1])

    def admit(self, live: Live, match: Match, tokens: int, now_s: float) -> bool:
        """Move a waiting request to running if it gets the pages of its share.

        `match` is the request's prefix as of now; its share of `tokens` is computed after it.
        """
        holding = self._cache.open(
            live.id, live.salt, live.sequence, live.request.retention, live.max_length - 1, match,
            now_s,
        )  # fmt: skip
        if holding is None:
            return False
        if not self._cache.grow(holding, match.tokens, match.tokens + tokens):
            self._cache.close(holding, now_s)
            return False
        live.holding, self._order = holding, None
        self.columns.join(holding.slot, live, match.tokens)
        self.waiting.remove(live)
        self.running[live.id] = live
        if live.view.admission is None:
            live.view.admission = self._admissions
            self._admissions += 1
            live.record.admitted_s = now_s
            if match.source is None:
                live.record.cached_tokens = match.tokens
            else:
                live.record.shared_tokens = match.tokens
        live.record.status = Status.RUNNING
        if self.loads is not None:
            self.loads.leave(live)
        self.counters.admissions += 1
        return True

    def slide_windows(self) -> None:
        """Free what running requests keep only for siblings that have not started."""
        for live in self.running.values():
            if live.holding is not None:
                self._cache.slide(live.holding, live.computed)

    def preempt_for(self, needy: Live, now_s: float) -> Live | None:
        """Choose a victim for `needy` and take its pages; None if there is nobody to choose."""
        oldest = min(self.running.values(), key=_age)
        candidates = [v for v in self.running.values() if v is not oldest and not v.in_flight]
        if not candidates:
            return None
        for live in candidates:
            live.refresh_view()
        chosen = self.policies.victim.choose([live.view for live in candidates])
        victim = self.running.get(chosen)
        if victim not in candidates:
            raise ContractError(
                f"{type(self.policies.victim).__name__} chose {chosen}, no candidate"
            )
        self._preempt(victim, now_s)
        return victim

    def _preempt(self, victim: Live, now_s: float) -> None:
        assert victim.holding is not None
        rests = victim.rests
        self._stop(victim, victim.holding, now_s)
        victim.draft = NO_DRAFT
        victim.record.status = Status.PREEMPTED
        victim.record.preemptions += 1
        victim.view.preemptions += 1
        victim.refresh_view()
        self.counters.preemptions += 1
        if not rests:
            self.enqueue(victim)

    def no_progress(self, live: Live) -> ContractError:
        """The error of an engine whose allocator cannot serve its only request."""
        names = ", ".join(type(pool.allocator).__name__ for pool in self._cache.pools)
        return ContractError(
            f"{names} cannot give request {live.request.index} the pages of its next tokens "
            "although nobody else runs"
        )


def _age(live: Live) -> int:
    assert live.view.admission is not None
    return live.view.admission
