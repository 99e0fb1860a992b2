"""What a store loses, refuses or takes too long for is computed again."""

import time

import pytest

from interlock.core.errors import ContractError
from interlock.core.testing.memory_tier import MemoryTier
from tests.engine.tiers import (
    PROMPTS,
    assert_nothing_held,
    drain,
    gated_reads,
    one_by_one,
    outputs,
    serve,
    stored_pages,
    tiered,
)


@pytest.mark.parametrize(
    ("harm", "at_once"), [("delete", 1), ("delete", 3), ("truncate", 4), ("dead", 1), ("dead", 3)]
)
def test_what_is_lost_between_lookup_and_read_is_computed(models, alone, harm, at_once):
    store = MemoryTier(at_once=at_once)
    engine, _ = tiered(models["gqa"], store=store)
    one_by_one(engine, PROMPTS)
    drain(engine)
    reads = []

    def hurt(what, key):
        if what != "read":
            return
        reads.append(key)
        if len(reads) % 5 == 3:  # some pages of every prompt are still there
            if harm == "delete":
                store.entries.pop(key, None)
            elif harm == "truncate":
                store.entries[key] = store.entries[key][: len(store.entries[key]) // 2]

    store.delay = hurt
    store.fails = lambda what, _key: harm == "dead" and what == "read"
    again = one_by_one(engine, PROMPTS)
    assert outputs(again) == alone("gqa", PROMPTS)
    assert engine.core.cache.tiers.counters.missed > 0
    assert {what for what, count in store.groups if count == at_once} == {"read", "write"}
    assert max(count for _, count in store.groups) == at_once
    assert_nothing_held(engine)
    engine.close()


def test_a_page_whose_backup_failed_is_not_marked_and_nothing_crashes(models, alone):
    store = MemoryTier(capacity=5)
    engine, _ = tiered(models["gqa"], "cache.write=back", store=store)
    records = one_by_one(engine, [*PROMPTS, *PROMPTS])
    assert outputs(records) == alone("gqa", PROMPTS) * 2
    drain(engine)
    counters = engine.core.cache.tiers.counters
    assert counters.not_saved > 0
    assert len(store.entries) == 5
    assert {key for key, _ in stored_pages(engine)} <= set(store.entries)
    assert_nothing_held(engine)
    engine.close()


@pytest.mark.parametrize("write", ["through", "back"])
def test_a_store_that_hangs_costs_no_more_than_the_stated_time(models, alone, write):
    store = MemoryTier()
    engine, _ = tiered(models["gqa"], store=store)
    one_by_one(engine, PROMPTS[:2])
    engine.close()
    engine, _ = tiered(
        models["gqa"], f"cache.write={write}", "cache.load_timeout_s=0.3", "cache.num_pages=40",
        store=store,
    )  # fmt: skip
    gate = gated_reads(store)
    (record,) = serve(engine, PROMPTS[:1])  # the read still hangs
    assert outputs([record]) == alone("gqa", PROMPTS[:1])
    assert record.cached_tokens == 0
    assert engine.core.cache.tiers.counters.given_up == 1
    assert engine.core.cache.pools[0].in_transit >= 7
    gate.set()
    assert_nothing_held(engine)
    engine.close()


def test_reads_that_take_too_long_together_end_and_leave_room_for_the_request(models, alone):
    store = MemoryTier()
    engine, _ = tiered(models["gqa"], store=store)
    one_by_one(engine, PROMPTS[:1])
    engine.close()
    engine, _ = tiered(models["gqa"], "cache.load_timeout_s=0.3", store=store)
    store.delay = lambda what, _key: time.sleep(0.2 if what == "read" else 0.0)
    assert outputs(serve(engine, PROMPTS[:1])) == alone("gqa", PROMPTS[:1])
    counters = engine.core.cache.tiers.counters
    assert counters.given_up == 1
    assert counters.missed >= 4
    assert_nothing_held(engine)
    engine.close()


def test_a_store_that_raises_is_named():
    class Raising(MemoryTier):
        def write(self, key, data):
            raise OSError("broken")

    engine, _ = tiered("tiny-gqa", "dtype=float32", store=Raising())
    with pytest.raises(ContractError, match=r"Raising.*OSError"):
        one_by_one(engine, PROMPTS)
