"""Pages that leave the device come back from a tier, byte for byte, or are computed again."""

import random
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from interlock.conf.hydra_edge import compose
from interlock.conf.read_config import to_plain
from interlock.core.assemble import assemble
from interlock.core.errors import ConfigError, ContractError
from interlock.core.registry import load_registry
from interlock.core.request import Status
from interlock.core.testing.memory_tier import MemoryTier, with_store
from interlock.driver.activity import counters, inert
from interlock.driver.rerun import Rerun
from interlock.driver.run_folder import SavedRun
from interlock.plugins.cache.tiers import needs
from interlock.plugins.executor.payloads import Payloads
from tests.engine.tiers import (
    SIZE,
    assert_nothing_held,
    base,
    drain,
    greedy,
    outputs,
    serve,
    tiered,
    tiny,
    tokens,
)

PROMPTS = [tokens(29, salt) for salt in range(5)]
KINDS = ("gqa", "mla_moe", "hybrid", "sinks")


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    return {kind: tiny(tmp_path_factory.mktemp("models"), kind) for kind in KINDS}


@pytest.fixture(scope="module")
def alone(models):
    """Tokens of a prompt run alone without a cache."""
    known = {}

    def of(kind, prompts):
        for prompt in prompts:
            if (kind, prompt) not in known:
                engine = assemble(base(models[kind], "cache=none"))
                known[kind, prompt] = outputs(serve(engine, [prompt]))[0]
        return [known[kind, prompt] for prompt in prompts]

    return of


def one_by_one(engine, prompts):
    return [serve(engine, [prompt])[0] for prompt in prompts]


def gated_reads(store):
    """Reads wait for this event."""
    gate = threading.Event()
    store.delay = lambda what, _key: gate.wait(100) if what == "read" else None
    return gate


def stored_pages(engine):
    """(key, page) of every indexed page whose content a tier has."""
    tiers = engine.core.cache.tiers
    kept = np.flatnonzero(engine.core.cache.pools[0].kept & tiers._saved)
    return [(tiers._keys[page], int(page)) for page in kept]


@pytest.mark.parametrize("write", ["through", "back"])
@pytest.mark.parametrize("kind", KINDS)
def test_what_left_the_device_comes_back_and_tokens_are_those_of_a_request_alone(
    models, alone, kind, write
):
    engine, _ = tiered(models[kind], f"cache.write={write}")
    first = one_by_one(engine, PROMPTS)
    again = one_by_one(engine, PROMPTS)
    assert outputs(first) == outputs(again) == alone(kind, PROMPTS)
    assert [record.cached_tokens for record in again] == [28] * len(PROMPTS)
    assert engine.core.cache.tiers.counters.loaded >= 28 // SIZE * (len(PROMPTS) - 1)
    assert_nothing_held(engine)
    engine.close()


@pytest.mark.parametrize(
    ("kind", "more"),
    [
        ("gqa", []),
        ("mla_moe", []),
        ("hybrid", []),
        ("gqa", ["cache.dtype=fp8", "dtype=float32"]),
        ("gqa", ["spec=eagle", "spec.path=eagle"]),
        ("hybrid", ["spec=eagle", "spec.path=eagle"]),
    ],
)
def test_a_page_on_the_device_is_byte_for_byte_what_the_tier_has(models, kind, more):
    more = [one.replace("path=", f"path={models[kind]}/") for one in more]
    engine, store = tiered(models[kind], *more)
    one_by_one(engine, [*PROMPTS, *PROMPTS])
    drain(engine)
    assert engine.core.cache.tiers.counters.loaded > 0
    payloads = Payloads(engine.planes)
    windows = engine.core.cache.windows.values()
    compared = 0
    for key, page in stored_pages(engine):
        anchors = np.array([page], dtype=np.int32)
        pages = [anchors, *(window.companion(anchors) for window in windows)]
        packed = payloads.buffer(1)
        payloads.pack(pages, packed)
        there = payloads.present(memoryview(store.entries[key]))
        here = payloads.present(packed[0].numpy().data)
        if here == there:  # a window's rows may have gone since
            assert bytes(packed[0].numpy().data) == store.entries[key]
            compared += 1
    assert compared >= 3
    engine.close()


def test_every_plane_and_the_drafters_rows_are_in_a_payload(models):
    plain, _ = tiered(models["gqa"])
    drafting, _ = tiered(models["gqa"], "spec=eagle", f"spec.path={models['gqa']}/eagle")
    sizes = []
    for engine in (plain, drafting):
        planes = [p for layer in engine.planes.of_layer.values() for p in layer.values()]
        rows = sum(plane[0].nbytes for plane in planes)
        payload = engine.core.loads.transfers.payload_bytes
        assert rows < payload <= rows + 128
        sizes.append(payload)
        engine.close()
    assert sizes[0] < sizes[1]


def test_a_second_process_finds_what_the_first_wrote(models, alone):
    engine, store = tiered(models["gqa"])
    one_by_one(engine, PROMPTS)
    engine.close()
    again, _ = tiered(models["gqa"], store=store)
    records = one_by_one(again, PROMPTS)
    assert outputs(records) == alone("gqa", PROMPTS)
    assert [record.cached_tokens for record in records] == [28] * len(PROMPTS)
    again.close()


def test_keys_do_not_depend_on_the_process_or_on_where_the_model_lies(models, tmp_path):
    import shutil

    moved = shutil.copytree(models["gqa"], tmp_path / "elsewhere")
    stored = []
    for model in (models["gqa"], moved):
        engine, store = tiered(model)
        one_by_one(engine, PROMPTS[:1])
        engine.close()
        stored.append(set(store.entries))
    assert stored[0] == stored[1]


@pytest.mark.parametrize(
    "change",
    [
        "weights",
        "tenant",
        "dtype=float32",
        "cache.page_size=2",
        "spec=eagle",
    ],
)
def test_leftovers_of_another_model_layout_or_tenant_are_misses(models, tmp_path, change):
    engine, store = tiered(models["gqa"])
    one_by_one(engine, PROMPTS[:2])
    engine.close()
    model, more = models["gqa"], []
    if change == "weights":
        model = tiny(tmp_path, "gqa", seed=1)
    elif change == "spec=eagle":
        more = [change, f"spec.path={model}/eagle"]
    elif change != "tenant":
        more = [change]
    other, _ = tiered(model, *more, store=store)
    if change == "tenant":
        from interlock.core.request import Request

        other.submit(Request(0, PROMPTS[0], greedy(), tenant="b"))
        (record,) = [output.finished for output in other.outputs() if output.finished]
    else:
        record = one_by_one(other, PROMPTS[:1])[0]
    assert record.cached_tokens == 0
    assert other.core.cache.tiers.counters.loaded == 0
    other.close()


def test_an_entry_of_another_layout_under_the_right_key_is_removed_and_computed(models, alone):
    engine, store = tiered(models["gqa"])
    one_by_one(engine, PROMPTS[:1])
    engine.close()
    broken = list(store.entries)
    for key in broken:
        store.entries[key] = bytes(len(store.entries[key]))
    again, _ = tiered(models["gqa"], "cache.write=back", store=store)
    assert outputs(one_by_one(again, PROMPTS[:1])) == alone("gqa", PROMPTS[:1])
    assert again.core.cache.tiers.counters.missed == 7
    assert store.failures["layout"] == 1
    assert broken[0] not in store.entries
    again.close()


@pytest.mark.parametrize("harm", ["delete", "truncate", "dead"])
def test_what_is_lost_between_lookup_and_read_is_computed(models, alone, harm):
    store = MemoryTier()
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
    from interlock.core.testing.integrity import check_engine

    for output in engine.step():
        if output.finished is not None:
            records[output.id] = output.finished
    check_engine(engine)


def test_two_stores_are_both_written_and_the_nearer_one_is_filled_on_a_read(models, alone):
    near, far = MemoryTier(), MemoryTier()
    registry = with_store(with_store(load_registry(), near, "near"), far, "far")
    chosen = ["cache/tiers=near", "cache/tiers/below=far", "cache/load=always"]
    engine = assemble(base(models["gqa"], *chosen, "cache.num_pages=12"), registry)
    one_by_one(engine, PROMPTS)
    drain(engine)
    assert near.entries == far.entries
    near.entries.clear()
    assert outputs(one_by_one(engine, PROMPTS)) == alone("gqa", PROMPTS)
    drain(engine)
    assert near.entries.items() <= far.entries.items()
    assert len(near.entries) >= 28
    engine.close()
    assert near.closed
    assert far.closed


@pytest.mark.parametrize(
    ("overrides", "reason"),
    [
        (["cache/tiers=memory", "cache=none"], "this one keeps nothing"),
        (["cache/tiers=memory", "executor=fixed"], "this executor has none"),
        (["cache/tiers=memory", "parallel=tensor"], "each rank has a part of every page"),
        (["cache/tiers=priced"], "this executor's pages have some"),
        (["cache/tiers/below=priced", "executor=fixed"], "cache/tiers=none is none"),
        (
            ["cache/tiers=priced", "executor=fixed", "cache.write=sometimes"],
            "not one of through, back",
        ),
        (["cache.load_timeout_s=0"], "not above 0"),
    ],
)
def test_what_cannot_be_tiered_is_refused_with_the_reason(models, overrides, reason):
    registry = with_store(load_registry(), MemoryTier(), requires=needs.of_bytes)
    with pytest.raises(ConfigError, match=reason):
        assemble([f"model={models['gqa']}", *overrides], registry)


def test_the_report_counts_what_stores_and_the_load_policy_did(models):
    engine, store = tiered(models["gqa"])
    one_by_one(engine, PROMPTS)
    store.fails = lambda what, _key: what == "read"
    one_by_one(engine, PROMPTS[:1])
    drain(engine)
    found = counters(engine)
    assert found["cache/tiers"]["saved"] > 0
    assert found["cache/tiers"]["missed"] == 7
    assert found["cache/tiers"]["failed_broken"] > 0
    assert found["cache/tiers/below"] == {}
    assert found["cache/load"]["loads"] == 1
    assert not {"cache/tiers", "cache/tiers/below", "cache/load"} & set(inert(engine))
    engine.close()


def test_a_store_that_was_never_used_is_reported(models):
    engine, _ = tiered(models["gqa"])
    assert {"cache/tiers", "cache/load"} <= set(inert(engine))
    assert "cache/tiers/below" not in inert(engine)
    engine.close()


def test_a_run_with_a_store_is_not_rerun():
    config = to_plain(compose(["cache/tiers=cpu"]))
    rerun = Rerun(SavedRun(Path("saved"), {"config": config, "device": {}}, []), [])
    with pytest.raises(ConfigError, match="cache/tiers=cpu, whose copies end"):
        rerun.config()
