"""Policies with memory equal plain references that share no code, block by block."""

import math
import random
from collections.abc import Callable, Sequence

import pytest

from interlock.core.eviction import EvictionPolicy
from interlock.core.request import HashedPrompt, Request
from interlock.driver.block_replay import TOUCH_S, replay
from interlock.plugins.cache.eviction.arc import ARCEviction
from interlock.plugins.cache.eviction.belady import BeladyEviction
from interlock.plugins.cache.eviction.cost_aware import CostAwareEviction
from interlock.plugins.cache.eviction.lfu import LFUEviction
from interlock.plugins.cache.eviction.lruk import LRUKEviction
from interlock.plugins.cache.eviction.s3fifo import S3FIFOEviction
from interlock.plugins.cache.eviction.ttl import TTLEviction

Trace = list[list[int]]


def a_trace(seed: int, requests: int = 60) -> Trace:
    """Prompts of blocks that belong to one depth each, some of them often."""
    draw = random.Random(seed)
    return [
        [
            10 * depth + min(draw.randrange(6), draw.randrange(6))
            for depth in range(draw.randint(1, 6))
        ]
        for _ in range(requests)
    ]


def played(policy: EvictionPolicy, trace: Trace, capacity: int, step_s: float = 0.0) -> list[int]:
    requests = [
        Request(index=i, hashed_prompt=HashedPrompt(tuple(b), 1, len(b)), arrival_s=i * step_s)
        for i, b in enumerate(trace)
    ]
    return [one.hits for one in replay(policy, requests, capacity).requests]


def hits_by(touch: Callable[[int, int], bool], trace: Trace) -> list[int]:
    """Hits of each request, given what a touch of (block, depth) finds."""
    return [sum(touch(block, depth) for depth, block in enumerate(some)) for some in trace]


class PlainARC:
    """Figure 4 of the paper on lists, oldest first; room is made before ghosts are looked at."""

    def __init__(self, size: int) -> None:
        self.c, self.p = size, 0.0
        self.t1: list[int] = []
        self.t2: list[int] = []
        self.b1: list[int] = []
        self.b2: list[int] = []

    def touch(self, x: int, _depth: int) -> bool:
        for recent in (self.t1, self.t2):
            if x in recent:
                recent.remove(x)
                self.t2.append(x)
                return True
        if len(self.t1) + len(self.t2) == self.c:
            if self.t1 and (len(self.t1) > self.p or not self.t2):
                self.b1.append(self.t1.pop(0))
            else:
                self.b2.append(self.t2.pop(0))
        if x in self.b1:
            self.p = min(self.c, self.p + max(1.0, len(self.b2) / len(self.b1)))
            self.b1.remove(x)
            self.t2.append(x)
        elif x in self.b2:
            self.p = max(0.0, self.p - max(1.0, len(self.b1) / len(self.b2)))
            self.b2.remove(x)
            self.t2.append(x)
        else:
            self.t1.append(x)
        while len(self.t1) + len(self.b1) > self.c:
            self.b1.pop(0)
        while len(self.t1) + len(self.t2) + len(self.b1) + len(self.b2) > 2 * self.c:
            self.b2.pop(0)
        return False


class PlainS3FIFO:
    """Algorithm 1 of the paper on lists, oldest first."""

    def __init__(self, size: int, share: float) -> None:
        self.size, self.most_small = size, max(1, round(size * share))
        self.small: list[int] = []
        self.main: list[int] = []
        self.ghosts: list[int] = []
        self.frequency: dict[int, int] = {}

    def touch(self, x: int, _depth: int) -> bool:
        if x in self.small or x in self.main:
            self.frequency[x] = min(3, self.frequency[x] + 1)
            return True
        while len(self.small) + len(self.main) == self.size:
            self.evict()
        if x in self.ghosts:
            self.ghosts.remove(x)
            self.main.append(x)
        else:
            self.small.append(x)
        self.frequency[x] = 0
        return False

    def evict(self) -> None:
        if self.small and (len(self.small) >= self.most_small or not self.main):
            tail = self.small.pop(0)
            if self.frequency[tail] > 1:
                self.main.append(tail)
                self.frequency[tail] = 0
            else:
                self.ghosts.append(tail)
                self.ghosts = self.ghosts[-max(1, self.size - self.most_small) :]
        else:
            tail = self.main.pop(0)
            if self.frequency[tail] > 0:
                self.frequency[tail] -= 1
                self.main.append(tail)


class PlainLRUK:
    """Every use of every block ever, and a look at all blocks to evict one."""

    def __init__(self, size: int, k: int) -> None:
        self.size, self.k, self.now = size, k, 0
        self.uses: dict[int, list[int]] = {}
        self.there: set[int] = set()

    def touch(self, x: int, _depth: int) -> bool:
        self.now += 1
        hit = x in self.there
        if not hit and len(self.there) == self.size:
            self.there.remove(min(self.there, key=self.order))
        self.uses.setdefault(x, []).append(self.now)
        self.there.add(x)
        return hit

    def order(self, x: int) -> tuple[float, int]:
        uses = self.uses[x]
        return (uses[-self.k] if len(uses) >= self.k else -math.inf), uses[-1]


class PlainGreedyDual:
    """GDSF, or with a cost of 1 LFU with dynamic aging."""

    def __init__(self, size: int, cost: Callable[[int], float]) -> None:
        self.size, self.cost, self.level, self.now = size, cost, 0.0, 0
        self.there: dict[int, tuple[float, int, int]] = {}

    def touch(self, x: int, depth: int) -> bool:
        self.now += 1
        hit = x in self.there
        if not hit and len(self.there) == self.size:
            gone = min(self.there, key=lambda one: self.there[one][:2])
            self.level = self.there.pop(gone)[0]
        count = self.there[x][2] + 1 if hit else 1
        self.there[x] = self.level + count * self.cost(depth), self.now, count
        return hit


@pytest.mark.parametrize("capacity", [1, 2, 5, 12])
@pytest.mark.parametrize("seed", range(4))
class TestAgainstReferences:
    def test_arc_equals_lists_of_recent_and_frequent_blocks(self, seed, capacity):
        trace = a_trace(seed)
        expected = hits_by(PlainARC(capacity).touch, trace)
        assert played(ARCEviction(capacity), trace, capacity) == expected

    def test_s3fifo_equals_three_plain_queues(self, seed, capacity):
        trace = a_trace(seed)
        expected = hits_by(PlainS3FIFO(capacity, 0.25).touch, trace)
        assert played(S3FIFOEviction(capacity, 0.25), trace, capacity) == expected

    @pytest.mark.parametrize("k", [1, 2, 3])
    def test_lruk_equals_a_look_at_every_use(self, seed, capacity, k):
        trace = a_trace(seed)
        expected = hits_by(PlainLRUK(capacity, k).touch, trace)
        assert played(LRUKEviction(k, history_pages=10**6), trace, capacity) == expected

    def test_cost_aware_equals_a_look_at_every_value(self, seed, capacity):
        trace = a_trace(seed)
        expected = hits_by(
            PlainGreedyDual(capacity, lambda depth: 1 + depth * 16 / 40).touch, trace
        )
        assert played(CostAwareEviction(16, 40.0), trace, capacity) == expected

    def test_aging_lfu_equals_a_look_at_every_key(self, seed, capacity):
        trace = a_trace(seed)
        expected = hits_by(PlainGreedyDual(capacity, lambda _depth: 1.0).touch, trace)
        assert played(LFUEviction(aging=True), trace, capacity) == expected

    def test_ttl_equals_lru_that_forgets_what_is_too_old(self, seed, capacity):
        trace, there, now, expected = a_trace(seed), dict[int, float](), 0.0, []
        for number, some in enumerate(trace):
            now = max(now, float(number))
            there = {block: used for block, used in there.items() if used + 4.5 > now}
            hits = 0
            for block in some:
                now += TOUCH_S
                hits += block in there
                if block not in there and len(there) == capacity:
                    del there[min(there, key=lambda one: there[one])]
                there[block] = now
            expected.append(hits)
        assert played(TTLEviction(4.5), trace, capacity, step_s=1.0) == expected

    def test_belady_equals_a_look_at_the_whole_future(self, seed, capacity):
        trace = a_trace(seed)
        future = [block for some in trace for block in some]
        there, hits = set[int](), 0
        for now, block in enumerate(future):
            hits += block in there
            if block not in there and len(there) == capacity:
                rest = future[now:]
                away = {one: rest.index(one) if one in rest else math.inf for one in there}
                there.remove(max(away, key=lambda one: away[one]))
            there.add(block)
        assert sum(played(BeladyEviction(future), trace, capacity)) == hits


def best_hits(future: Sequence[int], there: frozenset[int], capacity: int) -> int:
    """Most hits that any choice of victims gives, by trying all."""
    if not future:
        return 0
    block, *rest = future
    if block in there:
        return 1 + best_hits(rest, there, capacity)
    if len(there) < capacity:
        return best_hits(rest, there | {block}, capacity)
    return max(best_hits(rest, there - {gone} | {block}, capacity) for gone in there)


@pytest.mark.parametrize("seed", range(6))
def test_no_choice_of_victims_has_more_hits_than_belady(seed):
    draw = random.Random(seed)
    future = [draw.randrange(6) for _ in range(15)]
    hits = sum(played(BeladyEviction(future), [[block] for block in future], 3))
    assert hits == best_hits(future, frozenset(), 3)


def test_lruk_counts_uses_close_together_as_one():
    """Block 1 is used in a burst, block 2 twice with a pause: only 2 has a second use."""
    trace = [[1], [1], [2], [3], [2], [4], [1, 2]]
    assert played(LRUKEviction(2, correlated_s=1.5, history_pages=9), trace, 3, 1.0)[-1] == 1
    assert played(LRUKEviction(2, history_pages=9), trace, 3, 1.0)[-1] == 2


def test_arc_keeps_what_is_used_again_through_a_scan_that_lru_would_follow():
    working = [[1, 2, 3], [1, 2, 3]]
    scan = [[100 + n] for n in range(40)]
    assert played(ARCEviction(6), [*working, *scan, [1, 2, 3]], 6)[-1] == 3


def test_s3fifo_lets_a_scan_pass_through_its_small_queue():
    working = [[1, 2, 3], [1, 2, 3], [1, 2, 3]]
    scan = [[100 + n] for n in range(40)]
    assert played(S3FIFOEviction(10), [*working, *scan, [1, 2, 3]], 10)[-1] == 3
