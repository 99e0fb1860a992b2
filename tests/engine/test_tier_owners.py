"""Whose a page is while copies are under way, and who waits for them."""

import random
import time

import pytest

from interlock.core.request import Status
from interlock.core.testing.integrity import check_engine
from interlock.core.testing.memory_tier import MemoryTier
from tests.engine.serving import overlapping
from tests.engine.tiers import (
    PROMPTS,
    SIZE,
    assert_nothing_held,
    drain,
    gated_reads,
    greedy,
    one_by_one,
    outputs,
    tiered,
    tokens,
)


def test_saved_bytes_are_what_the_step_wrote_although_pages_are_reused_at_once(models, alone):
    store = MemoryTier()
    chance = random.Random(3)
    store.delay = lambda _what, _key: time.sleep(chance.random() * 0.01)
    engine, _ = tiered(models["gqa"], "cache.write=back", store=store)
    assert outputs(one_by_one(engine, PROMPTS)) == alone("gqa", PROMPTS)
    drain(engine)
    reference, right = tiered(models["gqa"], "cache.num_pages=64")
    one_by_one(reference, PROMPTS)
    drain(reference)
    assert store.entries
    assert store.entries.items() <= right.entries.items()
    engine.close()
    reference.close()


def test_a_request_that_waits_for_pages_keeps_nobody_waiting(models, alone):
    store = MemoryTier()
    engine, _ = tiered(models["gqa"], "cache.num_pages=40", store=store)
    one_by_one(engine, PROMPTS[:1])
    engine.close()
    engine, _ = tiered(models["gqa"], "cache.num_pages=40", "cache.load_timeout_s=30", store=store)
    gate = gated_reads(store)
    slow, quick = engine.submit(PROMPTS[0], greedy()), engine.submit(PROMPTS[1], greedy())
    ends = []
    while not ends:
        ends += [output for output in engine.step() if output.finished]
    gate.set()
    ends += [output for output in engine.outputs() if output.finished]
    assert [output.id for output in ends] == [quick, slow]
    assert [output.finished.cached_tokens for output in ends] == [0, 28]
    assert outputs([output.finished for output in ends]) == alone("gqa", PROMPTS[1::-1])
    engine.close()


def test_an_abort_while_pages_come_returns_everything(models, alone):
    store = MemoryTier()
    engine, _ = tiered(models["gqa"], store=store)
    one_by_one(engine, PROMPTS[:2])
    engine.close()
    engine, _ = tiered(models["gqa"], "cache.load_timeout_s=30", store=store)
    gate = gated_reads(store)
    first = engine.submit(PROMPTS[0], greedy())
    assert not [o for o in engine.step() if o.finished]
    assert engine.core.cache.pools[0].in_transit == 7
    engine.abort(first)
    (end,) = [output.finished for output in engine.outputs() if output.finished]
    gate.set()
    assert end.status is Status.ABORTED
    assert not end.output_token_ids
    assert_nothing_held(engine)
    assert outputs(one_by_one(engine, PROMPTS[:2])) == alone("gqa", PROMPTS[:2])
    engine.close()


def test_two_that_hold_loaded_pages_and_lack_the_rest_both_finish(models, alone):
    """A pool of 16: one needs 12 with 4 loaded, the other 14 with 6 loaded."""
    long = [tokens(4 * SIZE, 1) + tokens(8 * SIZE - 4, 2), tokens(6 * SIZE, 3) + tokens(25, 4)]
    store = MemoryTier()
    more = ["cache.num_pages=16", "cache.load_timeout_s=30"]
    engine, _ = tiered(models["gqa"], *more, store=store)
    one_by_one(engine, [long[0][: 4 * SIZE + 1], long[1][: 6 * SIZE + 1]])
    engine.close()
    for place in (11, 4):  # what the first time's outputs filled
        del store.entries[list(store.entries)[place]]
    engine, _ = tiered(models["gqa"], *more, store=store)
    expected = alone("gqa", long)
    gate = gated_reads(store)
    ids = [engine.submit(prompt, greedy()) for prompt in long]
    engine.step()
    pool = engine.core.cache.pools[0]
    assert (pool.in_transit, pool.allocator.free_pages()) == (10, 6)
    gate.set()
    records = {o.id: o.finished for o in engine.outputs() if o.finished}
    assert outputs([records[id] for id in ids]) == expected
    assert engine.core.cache.tiers.counters.given_back == 1
    assert_nothing_held(engine)
    assert pool.allocator.free_pages() + pool.cached == 16
    engine.close()


@pytest.mark.parametrize("kind", ["gqa", "hybrid"])
@pytest.mark.parametrize("seed", range(3))
def test_random_traffic_with_slow_and_failing_copies_gives_the_tokens_of_requests_alone(
    models, alone, kind, seed
):
    chance = random.Random(seed)
    store = MemoryTier(capacity=chance.choice([6, 40]))
    store.delay = lambda _what, _key: time.sleep(max(0.0, chance.random() - 0.6) * 0.01)
    store.fails = lambda _what, _key: chance.random() < 0.15
    write, page_size = chance.choice(["through", "back"]), chance.choice([2, 4])
    engine, _ = tiered(
        models[kind], f"cache.write={write}", f"cache.page_size={page_size}",
        "cache.num_pages=20", "scheduler.budget_tokens=16",
        f"cache/index={chance.choice(['radix', 'block_hash'])}", store=store,
    )  # fmt: skip
    stems = [tokens(chance.randrange(8, 24), salt) for salt in range(4)]
    wanted, records, live = {}, {}, []
    for _ in range(24):
        prompt = chance.choice(stems) + tokens(chance.randrange(1, 6), chance.randrange(2))
        id = engine.submit(prompt, greedy())
        wanted[id] = prompt
        live.append(id)
        for _ in range(chance.randrange(4)):
            _step(engine, records)
        if chance.random() < 0.15:
            engine.abort(chance.choice(live))
    while engine.has_work:
        _step(engine, records)
    expected = alone(kind, list(wanted.values()))
    for (id, _), right in zip(wanted.items(), expected, strict=True):
        record = records[id]
        given = tuple(record.output_token_ids)
        if record.status is Status.ABORTED:
            assert given == right[: len(given)]
        else:
            assert given == right, record.error
    assert_nothing_held(engine)
    engine.core.ledger.check()
    engine.close()


def _step(engine, records):
    for output in engine.step():
        if output.finished is not None:
            records[output.id] = output.finished
    check_engine(engine)


@pytest.mark.parametrize("write", ["through", "back"])
def test_no_page_is_loaded_into_while_a_step_in_flight_reads_it(models, alone, write):
    """Two steps in flight, slow copies, a pool that is short: who reads, who loads, who saves."""
    chance = random.Random(0)
    before, store = tiered(models["gqa"])
    one_by_one(before, PROMPTS)
    before.close()
    store.delay = lambda _what, _key: time.sleep(chance.random() * 0.004)
    built, _ = tiered(
        models["gqa"], f"cache.write={write}", "cache.num_pages=18", "scheduler.budget_tokens=12",
        store=store,
    )  # fmt: skip
    engine, core, tiers = overlapping(built), built.core, built.core.cache.tiers
    wanted, records, both = {}, {}, 0
    for _ in range(16):
        prompt = chance.choice(PROMPTS)[: chance.randrange(9, 30)]
        wanted[engine.submit(prompt, greedy())] = prompt
        if chance.random() < 0.2:
            engine.abort(chance.choice(list(wanted)))
        for _ in range(chance.randrange(3)):
            _step(engine, records)
            both += _no_page_is_read_and_loaded(core, tiers)
    while engine.has_work:
        _step(engine, records)
        both += _no_page_is_read_and_loaded(core, tiers)
    assert both, "no page was loaded beside a step in flight"
    assert_nothing_held(built)
    for (id, _), right in zip(wanted.items(), alone("gqa", [*wanted.values()]), strict=True):
        given = tuple(records[id].output_token_ids)
        assert given == (right[: len(given)] if records[id].status is Status.ABORTED else right)
    built.close()


def _no_page_is_read_and_loaded(core, tiers):
    """True if some step is in flight and some page is being loaded; no page is in both."""
    cache = core.cache
    flying = [live.holding for live in core.queues.running.values() if live.in_flight]
    read = {p for h in flying for p in cache.tables[0][h.slot, : h.counts[0]].tolist()}
    arriving = {p for load in tiers._loads.values() for p in load.transfer.pages[0].tolist()}
    assert not read & arriving
    return bool(read and arriving)
