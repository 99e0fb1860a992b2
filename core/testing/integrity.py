"""Recomputes from scratch what the cache and the queues count as they go."""

from collections.abc import Sequence

import numpy as np

from interlock.core.batch import Pages
from interlock.core.cached_runs import CachedRuns
from interlock.core.engine import Engine
from interlock.core.kv_cache import Holding, KVCache
from interlock.core.page_pool import PagePool
from interlock.core.running import Running
from interlock.core.window_pages import NONE, WindowPages


def check_engine(engine: Engine) -> None:
    """Assert that pages, index and columns are what the requests of an engine say.

    A page that its request will write belongs to that request alone.
    """
    cache, running = engine.core.cache, engine.core.queues.running.values()
    check_cache(cache, [live.holding for live in running if live.holding], holds_of(engine))
    check_running(engine.core.queues.columns)
    for live in running:
        if live.holding is not None:
            check_written(cache, live.holding, live.computed)


def holds_of(engine: Engine) -> list[list[Pages]]:
    """Pages by table of everything beside running requests that references some: see KVCache."""
    loads, tiers = engine.core.loads, engine.core.cache.tiers
    if loads is None or tiers is None:
        return []
    held = [wait.hold.pages for wait in loads._waits.values() if wait.hold is not None]
    held += [load.hold.pages for load in tiers._loads.values()]
    moving = [transfer.pages for transfer in tiers.under_way.values() if transfer.pages]
    return held + [[of[of != NONE] for of in pages] for pages in moving]


def check_written(cache: KVCache, holding: Holding, computed: int) -> None:
    """Assert that pages from entry `computed` on have one reference, and no index holds them."""
    for table, pool in enumerate(cache.pools):
        first, end = computed // cache.page_size, holding.counts[table]
        pages = cache.tables[table][holding.slot, first:end]
        assert bool((pool.refs[pages] == 1).all()), f"table {table}: {pages} have two owners"
        assert not pool.kept[pages].any(), f"table {table}: indexed pages would be written"


def check_cache(
    cache: KVCache, holdings: Sequence[Holding], holds: Sequence[Sequence[Pages]] = ()
) -> None:
    """Recompute ownership from the holdings, other holds by table, and the index."""
    for table, pool in enumerate(cache.pools):
        check_pool(pool)
        refs = np.zeros(pool.num_pages, dtype=np.int32)
        for holding in holdings:
            first, end = holding.first_live[table], holding.counts[table]
            np.add.at(refs, cache.tables[table][holding.slot, first:end], 1)
        for pages in holds:
            np.add.at(refs, pages[table], 1)
        assert bool((refs == pool.refs).all()), f"references of table {table} are stale"
    check_runs(cache.runs)
    for holding in holdings:
        row = cache.tables[0][holding.slot, : cache.indexed[holding.slot]]
        assert bool(cache.pools[0].kept[row].all()), "pages count as indexed and are not"
    indexed = set(np.flatnonzero(cache.pools[0].kept).tolist())
    for window in cache.windows.values():
        check_windows(window, indexed)


def check_pool(pool: PagePool) -> None:
    """Recompute a pool's counters."""
    pool.check()
    assert bool((pool.refs >= 0).all()), "a negative reference count"
    assert pool.referenced == np.count_nonzero(pool.refs), "referenced is stale"
    transit = np.count_nonzero((pool.moves > 0) & (pool.moves == pool.refs))
    assert pool.in_transit == transit, "in transit is stale"
    assert pool.moving == pool.moves.sum(), "moving is stale"
    assert pool.cached == np.count_nonzero(pool.kept & (pool.refs == 0)), "cached is stale"
    taken = np.flatnonzero((pool.refs > 0) | pool.kept).astype(np.int32)
    pool.allocator.check_integrity(taken)


def check_runs(runs: CachedRuns) -> None:
    """Recompute what is kept and who is a candidate."""
    runs.index.check_integrity()
    indexed = {page for run in runs.index.runs() for page in run.pages}
    assert indexed == set(np.flatnonzero(runs._pool.kept).tolist()), "kept pages are stale"
    for run in runs.index.runs():
        stale = runs._is_idle_leaf(run) != (id(run) in runs._candidates)
        assert not stale, "eviction candidates are stale"
    assert runs.policy.num_candidates() == len(runs._candidates)


def check_windows(window: WindowPages, indexed: set[int]) -> None:
    """Assert that companions and anchors mirror each other and that idle ones are known."""
    anchors = np.flatnonzero(window._companion != NONE)
    pages = window._companion[anchors]
    assert bool((window._anchor[pages] == anchors).all()), "a companion has another anchor"
    assert np.count_nonzero(window._anchor != NONE) == len(anchors), "an anchor lost its companion"
    assert set(anchors.tolist()) <= indexed, "a companion outlived its anchor"
    kept, refs = window._pool.kept, window._pool.refs
    assert set(np.flatnonzero(kept).tolist()) == set(pages.tolist()), "kept pages are stale"
    idle = set(np.flatnonzero(kept & (refs == 0)).tolist())
    assert idle <= set(window._idle), "an idle companion can never be dropped"


def check_running(running: Running) -> None:
    """Assert that the columns are what the requests say."""
    for slot, live in enumerate(running.lives):
        assert running.present[slot] == (live is not None), "a stale presence"
        if live is None:
            assert not running.in_flight[slot], "a free slot is in flight"
            continue
        sequence = live.sequence
        assert live.holding is not None, "no pages"
        assert live.holding.slot == slot, "a stale slot"
        assert running.ids[slot] == live.id, "a stale id"
        assert running.length[slot] == sequence.length <= running.most[slot], "a stale length"
        assert running.last[slot] == sequence.last(), "a stale newest token"
        assert running.computed[slot] <= running.high_water[slot], "a stale high water"
        pending = running.length[slot] - running.computed[slot]
        rests = pending == 0 and live.group.searches
        assert pending > 0 or rests or live.ended, "computed ahead"
        assert running.prompt[slot] == sequence.num_prompt, "a stale prompt"
        assert running.ended[slot] == live.ended, "a stale end"
