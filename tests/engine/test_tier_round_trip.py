"""Pages that left the device come back from a tier, byte for byte."""

import numpy as np
import pytest

from interlock.core.assemble import assemble
from interlock.core.registry import load_registry
from interlock.core.testing.memory_tier import MemoryTier, with_store
from interlock.plugins.executor.payloads import Payloads
from tests.engine.tiers import (
    KINDS,
    PROMPTS,
    SIZE,
    assert_nothing_held,
    base,
    drain,
    one_by_one,
    outputs,
    stored_pages,
    tiered,
    tokens,
)


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


@pytest.mark.parametrize("write", ["through", "back"])
def test_pages_of_a_window_that_are_needed_before_the_others_are_saved_with_them(
    models, alone, write
):
    """A window's pool that is smaller than the other's lets go of its pages first."""
    engine, _ = tiered(
        models["hybrid"], f"cache.write={write}", "cache.num_pages=null", "max_model_len=128",
        "scheduler.max_requests=1", "scheduler.budget_tokens=16",
    )  # fmt: skip
    full, window = [pool.num_pages for pool in engine.core.cache.pools]
    assert window < full // 2
    prompts = [tokens(29, salt) for salt in range(12)]
    first = one_by_one(engine, prompts)
    drain(engine)
    again = one_by_one(engine, prompts)
    assert outputs(first) == outputs(again) == alone("hybrid", prompts)
    assert [record.cached_tokens for record in again] == [28] * len(prompts)
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
