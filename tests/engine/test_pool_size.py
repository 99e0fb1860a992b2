"""Pools that nobody sized: memory is not exceeded, and windows leave what they cannot use."""

import dataclasses
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from interlock.conf import pool_size
from interlock.core.cache_spec import CacheGroup, CacheLayout, Full, Plane, Window
from interlock.core.registry import load_registry
from interlock.core.testing.tiny import write_tiny_checkpoint
from tests.engine.serving import asking, build, configured, outputs, serve, solo

CPU = torch.device("cpu")
PLANES = (Plane("k", (2, 4)), Plane("v", (2, 4)))


def layout_of(full_layers, window_layers, window=8):
    groups = [(Full(), full_layers), (Window(window), window_layers)]
    return CacheLayout.of([CacheGroup(tuple(range(n)), PLANES, life) for life, n in groups if n])


def sizes(layout, memory, monkeypatch, max_tokens=1000, reserves=False, **settings):
    monkeypatch.setattr(pool_size, "_lendable_bytes", lambda _device: memory)
    config = configured(page_size=4, num_pages=None, **settings)
    return pool_size.pool_sizes(config, layout, max_tokens, 4, CPU, reserves)


def bytes_of(layout, pages):
    """What the planes of these pages take, each with its scratch page."""
    of_table = dict(zip(layout.lifetimes, pages, strict=True))
    return sum(len(g.layers) * (of_table[g.lifetime] + 1) * 4 * 16 * 4 for g in layout.groups)


@given(
    full=st.integers(0, 3),
    windowed=st.integers(0, 3),
    window=st.integers(1, 300),
    memory=st.integers(0, 3_000_000),
    reserves=st.booleans(),
)
@settings(max_examples=150, deadline=None)
def test_memory_is_used_up_and_not_exceeded(full, windowed, window, memory, reserves):
    if not full + windowed:
        return
    layout = layout_of(full, windowed, window)
    with pytest.MonkeyPatch.context() as patch:
        pages = sizes(layout, memory, patch, reserves=reserves)
        more = sizes(layout, memory + 4 * 16 * 4 * (full + windowed), patch, reserves=reserves)
        enough = sizes(layout, 1 << 40, patch, reserves=reserves)
    assert min(pages) >= 1
    assert bytes_of(layout, pages) <= max(memory, bytes_of(layout, [1] * len(pages)))
    assert pages == enough or (more != pages) or memory < bytes_of(layout, [1] * len(pages))
    assert enough[0] == 8 * 250
    if windowed:
        seen = -(-(window - 1 + 64) // 4) + 1
        assert enough[1] == 8 * (250 if reserves else min(250, 2 * seen))


def test_what_windows_cannot_use_is_for_the_others(monkeypatch):
    memory = 601 * 4 * 16 * 4 * 4  # the scratch pages take one of each
    plain = sizes(layout_of(4, 0), memory, monkeypatch, budget_tokens=8)
    mixed = sizes(layout_of(2, 2), memory, monkeypatch, budget_tokens=8)
    assert plain == [600]
    assert mixed[1] == 8 * 2 * 5
    assert mixed[0] == 1200 - mixed[1]


def test_pages_of_windows_grow_with_memory_and_then_stop(monkeypatch):
    found = [
        sizes(layout_of(1, 1), pages * 4 * 16 * 4, monkeypatch)[1] for pages in range(0, 2000, 50)
    ]
    assert all(first <= second for first, second in pairwise(found))
    assert found[-1] == found[-2] == 8 * 2 * 19


def test_a_pool_sized_by_hand_has_so_many_pages_in_every_table(monkeypatch):
    config = configured(num_pages=7)
    assert pool_size.pool_sizes(config, layout_of(1, 1), 1000, 4, CPU, False) == [7, 7]


def test_windows_alone_serve_contexts_that_memory_could_not_hold(tmp_path, monkeypatch):
    """Rows of what fell out of the window are gone, so only the window needs memory."""
    families = list(load_registry().families.values())
    model = write_tiny_checkpoint(
        tmp_path / "model", "hybrid", families, layer_types=["sliding_attention"] * 4
    )
    requests = [asking(i, 60, 20, ignore_eos=True) for i in range(3)]
    monkeypatch.setattr(pool_size, "_lendable_bytes", lambda _device: 9 * 4 * 4 * 2 * 16 * 8)
    engine = build(model, num_pages=None, budget_tokens=12, max_requests=2)
    pools = engine.core.cache.pools
    assert pools[1].num_pages == 8
    assert pools[1].num_pages * 4 < 60
    assert outputs(serve(engine, *requests)) == solo(model, requests)


def test_a_fixed_pool_still_counts_pages_where_nothing_is_stored(monkeypatch):
    monkeypatch.setattr(pool_size, "SIMULATED_MOST_PAGES", 100)
    config = configured(page_size=4, num_pages=None, max_requests=64)
    config = dataclasses.replace(config, max_model_len=1 << 20)
    assert pool_size.pool_sizes(config, CacheLayout.of([]), 1 << 20, 4, CPU, False) == [100]


def test_ranks_on_a_cpu_share_its_memory(monkeypatch):
    monkeypatch.setattr(pool_size, "_lendable_bytes", lambda _device: 8000)
    layout = CacheLayout.of([CacheGroup((0,), (Plane("k", (1,)),))])
    config = configured(page_size=1, num_pages=None)
    found = [pool_size.pool_sizes(config, layout, 10_000, 4, CPU, False, n) for n in (1, 2, 4)]
    assert found == [[1999], [999], [499]]
