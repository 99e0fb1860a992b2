"""Puts the pages of a snapshot into an engine that has served nothing yet."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from interlock.core.batch import PageId, Pages
from interlock.core.engine import Engine
from interlock.core.errors import ConfigError
from interlock.core.prefix_index import PrefixKey, Units
from interlock.core.request import RequestId
from interlock.core.transfers import NOWHERE, Kind, Transfer
from interlock.plugins.cache.watches.books import Books
from interlock.plugins.cache.watches.payload_file import PayloadFile, carry, key_of
from interlock.plugins.cache.watches.saved_runs import (
    SavedRun,
    release_order,
    shifted,
    that_fit,
)
from interlock.plugins.cache.watches.snapshot_files import checked


class Restore:
    """One restoration. Every file is checked before the first page is touched."""

    def __init__(
        self, engine: Engine, directory: Path, manifest: Mapping[str, Any], has_bytes: bool
    ) -> None:
        """ConfigError, naming the file, for a damaged one."""
        self._engine, self._cache, self._has_bytes = engine, engine.core.cache, has_bytes
        self._path = {part: checked(directory, manifest, part) for part in manifest["files"]}
        self._payload_bytes: int = manifest["payload_bytes"]
        self._total: int = manifest["num_pages"]
        self._kept = json.loads(self._path["runs"].read_bytes())
        self._shift_s = engine.clock.now() - self._kept["saved_s"]
        self._units: Units = np.fromfile(self._path["rows"], dtype="<i8")

    def run(self) -> tuple[int, int]:
        """How many pages came, and how many the pool had no room for."""
        saved = [shifted(SavedRun(**run), self._shift_s) for run in self._kept["runs"]]
        starts = _row_starts(saved)
        cache, policy = self._cache, self._cache.runs.policy
        runs = saved
        if self._total > cache.pools[0].num_pages:
            runs = that_fit(saved, policy, cache.pools[0].num_pages)
        pages = [self._take(0, n, run.pages) for n, run in enumerate(runs)]
        places = [np.arange(run.first, run.first + run.pages) for run in runs]
        of_place = np.full(self._total, NOWHERE, dtype=np.int32)
        for place, of_run in zip(places, pages, strict=True):
            of_place[place] = of_run
        windows = self._window_pages(of_place)
        if self._has_bytes:
            self._read(of_place, windows)
        for run, of_run in zip(runs, pages, strict=True):
            self._index(run, of_run, starts, pages, runs)
        self._adopt(of_place, windows)
        self._part(runs, pages)
        books = self._kept["books"]
        same = self._kept["policy"] == self._engine.resolution.chosen["cache/eviction"].key
        if same and books is not None and isinstance(policy, Books):
            policy.open_books(books, list(cache.index.runs()), self._shift_s)
        self._release(runs, pages, windows)
        return sum(run.pages for run in runs), self._total - sum(run.pages for run in runs)

    # Pages and bytes ----------------------------------------------------------------------------

    def _take(self, table: int, number: int, count: int) -> Pages:
        pool, owner = self._cache.pools[table], RequestId(-1 - number)
        assert pool.allocator.open(owner, count), "an empty pool refused pages"
        pages = pool.take([owner], [count])
        pool.allocator.close(owner)
        assert pages is not None, "an empty pool has too few pages"
        return pages

    def _window_pages(self, of_place: Pages) -> list[tuple[NDArray[np.int64], Pages]]:
        """For each window: places of anchors, those that go first in front, and their companions.

        Where there is no room for all, those that would go first stay out.
        """
        found = []
        for table, places in zip(self._cache.windows, self._kept["windows"], strict=True):
            here = np.array([p for p in places if of_place[p] != NOWHERE], dtype=np.int64)
            here = here[max(0, len(here) - self._cache.pools[table].num_pages) :]
            found.append((here, self._take(table, 0, len(here))))
        return found

    def _read(self, of_place: Pages, windows: Sequence[tuple[NDArray[np.int64], Pages]]) -> None:
        places = np.flatnonzero(of_place != NOWHERE)
        tables = [of_place[places]]
        for here, pages in windows:
            column = np.full(len(of_place), NOWHERE, dtype=np.int32)
            column[here] = pages
            tables.append(column[places])
        store = PayloadFile(self._path["pages"], self._payload_bytes, write=False)
        keys = [key_of(place) for place in places.tolist()]
        transfer = Transfer(Kind.LOAD, keys, tuple(tables), 0.0, [0] * len(keys))
        try:
            carry(self._engine, store, transfer)
        finally:
            store.close()
        if len(transfer.done) < len(keys):
            raise ConfigError(
                f"{self._path['pages']}: damaged: page {len(transfer.done)} cannot be read, or is "
                "not of this layout"
            )

    # The index ----------------------------------------------------------------------------------

    def _index(
        self, run: SavedRun, own: Pages, starts: Mapping[int, int], pages: Sequence[Pages],
        runs: Sequence[SavedRun],
    ) -> None:  # fmt: skip
        begin = starts[run.first]
        rows = self._units[begin : begin + run.pages * run.width].reshape(-1, run.width)
        after = None if run.parent is None else PageId(int(pages[run.parent][-1]))
        key = PrefixKey(bytes.fromhex(run.salt), rows)
        indexed = self._cache.runs.insert(key, after, own, run.created_s)
        assert np.array_equal(indexed, own), "an empty index knew a page"
        if self._cache.tiers is not None:
            self._cache.tiers.indexed(key, after, indexed, own)

    def _adopt(
        self, of_place: Pages, windows: Sequence[tuple[NDArray[np.int64], Pages]]
    ) -> None:  # fmt: skip
        for window, (here, pages) in zip(self._cache.windows.values(), windows, strict=True):
            window.adopt(of_place[here], pages, 0, 0)

    def _part(self, runs: Sequence[SavedRun], pages: Sequence[Pages]) -> None:
        """Let runs end where they did, and know what they knew."""
        index = self._cache.index
        for of_run in pages:
            index.isolate(PageId(int(of_run[-1])))
        for run, of_run in zip(runs, pages, strict=True):
            node = index.run_of(PageId(int(of_run[-1])))
            assert node is not None
            node.created_s, node.last_used_s = run.created_s, run.last_used_s
            node.uses, node.priority, node.state = run.uses, run.priority, dict(run.state)

    def _release(
        self, runs: Sequence[SavedRun], pages: Sequence[Pages],
        windows: Sequence[tuple[NDArray[np.int64], Pages]],
    ) -> None:  # fmt: skip
        """Nobody holds the pages now; runs become candidates in the order in which they had."""
        for of_run in pages:
            self._cache.release(0, of_run)
        for table, (_, of_table) in zip(self._cache.windows, windows, strict=True):
            self._cache.release(table, of_table)
        for number in release_order(runs):
            self._cache.runs.refresh(PageId(int(pages[number][-1])))


def _row_starts(runs: Sequence[SavedRun]) -> dict[int, int]:
    """Where the rows of a run begin in the file, by its first page, in units."""
    starts, end = {}, 0
    for run in runs:
        starts[run.first] = end
        end += run.pages * run.width
    return starts
