"""Policies that rank runs keep the contract and let runs go in the order their names promise."""

import random

import pytest

from interlock.core.eviction import EvictionPolicy
from interlock.core.model import AttentionSpec, ModelDescription
from interlock.core.retention import RETAIN_S
from interlock.core.testing.eviction_contract import EvictionContract, a_run, drain
from interlock.plugins.cache.eviction.arc import ARCEviction
from interlock.plugins.cache.eviction.belady import BeladyEviction
from interlock.plugins.cache.eviction.cost_aware import CostAwareEviction, attention_tokens
from interlock.plugins.cache.eviction.fifo import FIFOEviction
from interlock.plugins.cache.eviction.length_aware import LengthAwareEviction
from interlock.plugins.cache.eviction.lfu import LFUEviction
from interlock.plugins.cache.eviction.lru import LRUEviction
from interlock.plugins.cache.eviction.lruk import LRUKEviction
from interlock.plugins.cache.eviction.priority import PriorityEviction
from interlock.plugins.cache.eviction.s3fifo import S3FIFOEviction
from interlock.plugins.cache.eviction.ttl import TTLEviction


class TestLRUEviction(EvictionContract):
    def make(self) -> EvictionPolicy:
        return LRUEviction()

    def test_run_used_longest_ago_goes_first(self) -> None:
        policy = LRUEviction()
        old_but_used = a_run(0, created_s=1.0, last_used_s=9.0)
        new = a_run(1, created_s=5.0)
        policy.add(old_but_used)
        policy.add(new)
        assert drain(policy) == [new, old_but_used]

    def test_use_while_pinned_moves_a_run_to_the_end(self) -> None:
        policy = LRUEviction()
        runs = [a_run(i, created_s=float(i)) for i in range(3)]
        for run in runs:
            policy.add(run)
        policy.discard(runs[0])
        runs[0].last_used_s = 7.0
        policy.add(runs[0])
        assert drain(policy) == [runs[1], runs[2], runs[0]]


class TestFIFOEviction(EvictionContract):
    def make(self) -> EvictionPolicy:
        return FIFOEviction()

    def test_run_indexed_first_goes_first_however_often_it_is_used(self) -> None:
        policy = FIFOEviction()
        old_but_used = a_run(0, created_s=1.0, last_used_s=9.0, uses=50)
        new = a_run(1, created_s=5.0)
        policy.add(new)
        policy.add(old_but_used)
        assert drain(policy) == [old_but_used, new]


class TestLFUEviction(EvictionContract):
    def make(self) -> EvictionPolicy:
        return LFUEviction()

    def test_run_used_least_goes_first_and_of_equals_the_one_unused_for_longest(self) -> None:
        policy = LFUEviction()
        often = a_run(0, created_s=0.0, uses=5)
        old, new = a_run(1, created_s=1.0, uses=2), a_run(2, created_s=2.0, uses=2)
        for run in (often, new, old):
            policy.add(run)
        assert drain(policy) == [old, new, often]


class TestAgingLFUEviction(EvictionContract):
    def make(self) -> EvictionPolicy:
        return LFUEviction(aging=True)

    def test_old_favourite_goes_once_as_much_was_evicted_as_it_was_used(self) -> None:
        """The favourite's key stays 3; that of a newcomer is 1 more than the last evicted's."""
        policy, alive = LFUEviction(aging=True), []
        favourite = a_run(0, uses=3)
        policy.add(favourite)
        for number in range(1, 9):
            policy.add(a_run(number, created_s=float(number)))
            alive.append(policy.choose() is not favourite)
        assert alive == [True, True, False, True, True, True, True, True]


class TestLengthAwareEviction(EvictionContract):
    def make(self) -> EvictionPolicy:
        return LengthAwareEviction()

    def test_of_runs_used_as_often_the_one_that_ends_deepest_goes_first(self) -> None:
        policy = LengthAwareEviction()
        early = a_run(0, depth_pages=0, pages=9, last_used_s=9.0)
        late = a_run(9, depth_pages=8, pages=2, last_used_s=1.0)
        used = a_run(11, depth_pages=50, uses=2)
        for run in (used, early, late):
            policy.add(run)
        assert drain(policy) == [late, early, used]


class TestS3FIFOEviction(EvictionContract):
    def make(self) -> EvictionPolicy:
        return S3FIFOEviction(num_pages=20)


class TestLRUKEviction(EvictionContract):
    def make(self) -> EvictionPolicy:
        return LRUKEviction(history_pages=20)


class TestARCEviction(EvictionContract):
    def make(self) -> EvictionPolicy:
        return ARCEviction(num_pages=20)


class TestCostAwareEviction(EvictionContract):
    def make(self) -> EvictionPolicy:
        return CostAwareEviction(page_size=16, attention_tokens=100.0)

    def test_of_runs_used_as_often_the_one_cheapest_to_compute_again_goes_first(self) -> None:
        policy = CostAwareEviction(page_size=16, attention_tokens=100.0)
        deep, shallow = a_run(0, depth_pages=50), a_run(1, created_s=9.0)
        policy.add(deep)
        policy.add(shallow)
        assert policy.value(deep) == 1 + 50 * 16 / 100
        assert drain(policy) == [shallow, deep]

    def test_attention_costs_as_much_as_the_rest_at_six_times_the_hidden_size(self) -> None:
        """Where the heads' sizes add up to the hidden size: 24 E**2 = 4 E tokens."""
        spec = AttentionSpec("heads", 8, 2, 64, 64, 0.125)
        model = ModelDescription("m", "f", 10, 512, 3, 100, (spec,) * 3, "float32", {})
        assert attention_tokens(model) == 6 * 512


class TestTTLEviction(EvictionContract):
    def make(self) -> EvictionPolicy:
        return TTLEviction(ttl_s=20.0)

    def test_runs_expire_in_the_order_of_their_last_uses_once_the_time_is_over(self) -> None:
        policy = TTLEviction(ttl_s=10.0)
        first, second = a_run(0, last_used_s=1.0), a_run(1, last_used_s=3.0)
        policy.add(second)
        policy.add(first)
        assert policy.expired(10.9) is None
        assert policy.expired(13.0) is first
        assert policy.expired(13.0) is second
        assert policy.expired(99.0) is None


class TestPriorityEviction(EvictionContract):
    def make(self) -> EvictionPolicy:
        return PriorityEviction()

    def test_lowest_priority_goes_first_and_of_equals_the_one_unused_for_longest(self) -> None:
        policy = PriorityEviction()
        runs = [a_run(n, created_s=float(n), priority=p) for n, p in enumerate([80, 35, 35, 5])]
        for run in reversed(runs):
            policy.add(run)
        assert drain(policy) == [runs[3], runs[1], runs[2], runs[0]]

    @pytest.mark.parametrize("late", [False, True])
    def test_priority_is_the_default_again_so_long_after_the_last_use(self, late: bool) -> None:
        policy = PriorityEviction()
        kept, plain = a_run(0, created_s=1.0, priority=90), a_run(1, created_s=2.0, priority=35)
        kept.state[RETAIN_S] = 10.0
        policy.add(kept)
        policy.add(plain)
        assert policy.expired(11.0 if late else 10.9) is None
        assert policy.num_candidates() == 2
        assert policy.choose() is (kept if late else plain)

    def test_low_priority_rises_to_the_default_when_its_time_is_over(self) -> None:
        policy = PriorityEviction()
        low, plain = a_run(0, created_s=5.0, priority=0), a_run(1, created_s=2.0, priority=35)
        low.state[RETAIN_S] = 1.0
        policy.add(low)
        policy.add(plain)
        policy.expired(7.0)
        assert drain(policy) == [plain, low]


class TestBeladyEviction(EvictionContract):
    def make(self) -> EvictionPolicy:
        return BeladyEviction([*range(8), 3, 1, 4, 1, 5, 9, 2, 6, 5] * 3)

    def test_reference_that_this_run_leaves_out_does_not_keep_a_run_for_ever(self) -> None:
        policy = BeladyEviction([0, 1, 0, *range(2, 30), 1], slack=10)
        skipped, later = a_run(0, keys=[0]), a_run(1, keys=[1])
        for run in (skipped, later):
            policy.entered(run, 1)
        assert (policy.next_use(skipped), policy.next_use(later)) == (2, 31)
        for key in range(2, 30):
            policy.entered(a_run(2, keys=[key]), 1)
        assert policy.next_use(skipped) == float("inf")
        for run in (skipped, later):
            policy.add(run)
        assert drain(policy) == [skipped, later]


@pytest.mark.parametrize("policy_class", [LRUEviction, FIFOEviction])
def test_of_runs_touched_at_one_instant_the_deepest_goes_first(policy_class: type) -> None:
    policy = policy_class()
    runs = [a_run(i, depth_pages=depth) for i, depth in enumerate([2, 8, 0, 5])]
    for run in runs:
        policy.add(run)
    assert [run.depth_pages for run in drain(policy)] == [8, 5, 2, 0]


@pytest.mark.parametrize(
    ("policy_class", "field"), [(LRUEviction, "last_used_s"), (FIFOEviction, "created_s")]
)
def test_order_of_two_hundred_runs_is_the_sorted_order(policy_class: type, field: str) -> None:
    draw = random.Random(7)
    policy = policy_class()
    runs = []
    for number in range(200):
        run = a_run(number, created_s=float(draw.randrange(40)), depth_pages=draw.randrange(9))
        run.last_used_s = run.created_s + draw.randrange(40)
        runs.append(run)
        policy.add(run)
    survivors = [run for run in runs if draw.random() < 0.3]
    for run in runs:
        if run not in survivors:
            policy.discard(run)
    expected = sorted(survivors, key=lambda run: (getattr(run, field), -run.depth_pages))
    assert drain(policy) == expected
