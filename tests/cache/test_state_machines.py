"""Random histories on every combination of allocator, index and policy, and on broken parts."""

import numpy as np
import pytest

from interlock.core.cache_spec import CacheLayout
from interlock.core.kv_cache import KVCache
from interlock.core.prefix_index import PrefixKey
from interlock.core.registry import load_registry
from interlock.core.testing.cache_machine import LONGEST, REQUESTS, STEP_TOKENS, CacheMachine
from interlock.core.testing.cache_walk import CacheWalk
from interlock.core.testing.checked_policy import LAWS, CheckedPolicy
from interlock.plugins.cache.buddy import BuddyAllocator
from interlock.plugins.cache.eviction.fifo import FIFOEviction
from interlock.plugins.cache.eviction.lru import LRUEviction
from interlock.plugins.cache.eviction.priority import PriorityEviction
from interlock.plugins.cache.paged import PagedAllocator
from interlock.plugins.cache.radix import RadixIndex

OPERATIONS = 150


def test_no_combination_that_the_resolver_accepts_violates_the_model(tmp_path):
    walk = CacheWalk(load_registry())
    combinations = walk.combinations(tmp_path)
    told = {tuple(choice.name for choice in one.choices) for one in combinations}
    indexes, policies = walk.registry.names("cache/index"), walk.registry.names("cache/eviction")
    assert {one[1] for one in told} == set(indexes)
    assert {one[1:] for one in told if one[0] == "paged"} >= {
        (index, policy) for index in ("radix", "block_hash", "none") for policy in policies
    }
    laps = [walk.run(one, OPERATIONS, seed) for seed, one in enumerate(combinations)]
    assert sum(lap.evicted_pages for lap in laps) > 20 * len(laps)
    assert sum(lap.hits for lap in laps) > 4 * len(laps)


def machine(allocator=PagedAllocator, index=RadixIndex, policy=LRUEviction, law="lru", seed=3):
    cache = KVCache(
        layout=CacheLayout.of(()), allocators=[allocator(LONGEST)], index=index(),
        policy=CheckedPolicy(policy(), LAWS[law]), page_size=2, max_requests=REQUESTS,
        max_tokens=LONGEST, max_step_tokens=STEP_TOKENS, shares_pages=True,
    )  # fmt: skip
    return CacheMachine(cache, 0, seed, by_last_use=law == "lru")


def play(build, operations=400):
    """Some histories, up to a violation."""
    for seed in range(5):
        one = build(seed)
        for _ in range(operations):
            one.step()
        one.check_memory()
        one.finish()


class Unequal(RadixIndex):
    """Compares all but the last token of a page."""

    def match(self, key):
        return super().match(PrefixKey(key.salt, np.where(key.units == 6, 5, key.units)))


class Short(RadixIndex):
    """Never finds the last page."""

    def match(self, key):
        return super().match(key)[:-1]


class Hoarder(RadixIndex):
    """Remembers every key that was ever asked for."""

    def __init__(self):
        super().__init__()
        self.asked = []

    def match(self, key):
        self.asked.append(key.units.repeat(40))
        return super().match(key)


class Miscounts(PagedAllocator):
    """Says that there is one page less."""

    def free_pages(self):
        return super().free_pages() - 1


class Newest(LRUEviction):
    """The other way round."""

    def rank(self, run):
        return -run.last_used_s, 0


@pytest.mark.parametrize(
    ("parts", "reason"),
    [
        ({"index": Unequal}, "not the longest indexed prefix"),
        ({"index": Short}, "not the longest indexed prefix"),
        ({"index": Hoarder}, "bytes for"),
        ({"allocator": Miscounts}, "free pages are miscounted"),
        ({"policy": Newest}, "another candidate had to go first"),
        ({"policy": FIFOEviction}, "another candidate had to go first"),
    ],
)
def test_a_broken_part_is_found(parts, reason):
    with pytest.raises(AssertionError, match=reason):
        play(lambda seed: machine(**parts, seed=seed))


def test_a_page_evicted_before_one_that_follows_it_is_found():
    one = machine()
    for _ in range(60):
        one.step()
    path = next(p for p in one.model.page_of if len(p[1]) > 2)
    parent = one.model.page_of[one.model.before(path)]
    one.model.owners.pop(parent, None)
    with pytest.raises(AssertionError, match="before one that follows it"):
        one.model.leave(parent)


def test_ends_of_long_durations_do_not_pile_up_in_the_priority_policy():
    """A page that is used again and again, and asked to stay for a year each time."""
    one = machine(BuddyAllocator, policy=PriorityEviction, law="priority")
    for _ in range(2000):
        one.step()
    assert len(one.cache.runs.policy.policy._ends) <= 2 * one.pool.num_pages + 8
    one.finish()
