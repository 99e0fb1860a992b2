"""Indexed pages and their copies in tiers: keys, what is saved, what is under way, and who owns it.

A page that is copied has a reference of the copy's (`PagePool.start_move`), so it can neither be
freed nor given to anybody before the copy is acknowledged. What was not acknowledged counts as
not saved; what was not read is computed.
"""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from interlock.core.batch import PageId, Pages
from interlock.core.kv_cache import KVCache, Match
from interlock.core.prefix_index import PrefixKey, Units
from interlock.core.request import RequestId
from interlock.core.tier import KEY_BYTES, Key
from interlock.core.transfers import NOWHERE, Kind, Moved, Transfer, Transfers

FORMAT = b"interlock page 1\0"
"""What keys begin with: another layout of payloads, or way to make keys, is another number."""
SAVED_AT_ONCE = 16
"""Pages of one save: all are held until the last of them is written."""


@dataclass(slots=True)
class TierCounters:
    """What became of copies, in pages unless named otherwise."""

    saved: int = 0
    not_saved: int = 0
    loaded: int = 0
    missed: int = 0
    """Were to be loaded, and could not be read."""
    given_up: int = 0
    """Loads that took too long for their request."""
    given_back: int = 0
    """Holds of loaded pages that waiting requests gave up for others."""


@dataclass(slots=True, eq=False)
class Hold:
    """References to pages of each table that a waiting request, or a load for it, has."""

    pages: list[Pages]


@dataclass(slots=True, eq=False)
class Load:
    """Pages on their way to the device, for the rows `key.units` that follow page `after`."""

    transfer: Transfer
    key: PrefixKey
    after: PageId | None
    hold: Hold
    """Of what the loaded pages follow."""
    started_s: float


def next_keys(before: Key, units: Units) -> list[Key]:
    """The keys of pages with these rows, one after the other; `before` is what precedes them."""
    keys = []
    for row in np.ascontiguousarray(units):
        before = hashlib.blake2b(before + row.tobytes(), digest_size=KEY_BYTES).digest()
        keys.append(before)
    return keys


class TieredPages:
    """Saves what the cache indexes (`through`) or evicts (`back`), and brings it back.

    `give_back` frees a hold of some waiting request, if there is one.
    """

    def __init__(
        self, cache: KVCache, transfers: Transfers, write_through: bool, timeout_s: float
    ) -> None:
        self.transfers = transfers
        self.timeout_s = timeout_s
        self.counters = TierCounters()
        self.under_way: dict[int, Transfer] = {}
        """Those that are not finished, by their ids."""
        self.arriving = [0] * len(cache.pools)
        """Pages of each table that loads are writing."""
        self.give_back: Callable[[], bool] = lambda: False
        self.saved: Callable[[Sequence[Moved]], None] = lambda _moved: None
        """Told what tiers took for each save."""
        self._cache = cache
        self._write_through = write_through
        self._keys: list[Key] = [b""] * cache.pools[0].num_pages
        self._saved = np.zeros(cache.pools[0].num_pages, dtype=np.bool_)
        self.loading: dict[Key, Load] = {}
        """Loads under way, by each of their keys."""
        self._loads: dict[int, Load] = {}
        if not write_through:
            cache.runs.leaving = self._leaving
            for window in cache.windows.values():
                window.leaving = self._parting

    # Keys ---------------------------------------------------------------------------------------

    def keys(self, key: PrefixKey, after: PageId | None) -> list[Key]:
        """Of the pages with these rows after an indexed page (None: the first ones)."""
        before = hashlib.blake2b(FORMAT + key.salt, digest_size=KEY_BYTES).digest()
        return next_keys(before if after is None else self._keys[after], key.units)

    def indexed(self, key: PrefixKey, after: PageId | None, pages: Pages, own: Pages) -> None:
        """Pages were indexed for these rows: of a request's `own` the last ones, or none."""
        known = int(np.count_nonzero(pages != own))
        if known == len(own):
            return
        after = PageId(int(pages[known - 1])) if known else after
        self._note(own[known:], self.keys(PrefixKey(key.salt, key.units[known:]), after), False)
        if self._write_through:
            self._save(own[known:])
            self._cache.runs.refresh(PageId(int(own[-1])))

    def _note(self, pages: Pages, keys: Sequence[Key], saved: bool) -> None:
        for page, key in zip(pages.tolist(), keys, strict=True):
            self._keys[page] = key
        self._saved[pages] = saved

    # To the tiers -------------------------------------------------------------------------------

    def _leaving(self, pages: Pages) -> None:
        """The index let go of these unreferenced pages: those without a copy are saved first."""
        self._save(pages[~self._saved[pages]])

    def _parting(self, anchors: Pages) -> None:
        """A window lets go of its pages of these indexed ones, which are saved with them."""
        self._leaving(anchors)
        for page in anchors.tolist():
            self._cache.runs.refresh(PageId(page))

    def _save(self, pages: Pages) -> None:
        for first in range(0, len(pages), SAVED_AT_ONCE):
            some = pages[first : first + SAVED_AT_ONCE]
            tables = [some, *(window.companion(some) for window in self._cache.windows.values())]
            for table, of_table in enumerate(tables):
                moved = of_table[of_table != NOWHERE]
                self._cache.pools[table].add_refs(moved)
                self._cache.pools[table].start_move(moved)
            self._start(Kind.SAVE, [self._keys[page] for page in some.tolist()], tuple(tables))

    def _start(
        self, kind: Kind, keys: Sequence[Key], pages: tuple[Pages, ...] = (),
        where: Sequence[int] = (),
    ) -> Transfer:  # fmt: skip
        now_s = self._cache.now_s
        transfer = Transfer(kind, keys, pages, now_s + self.timeout_s, list(where))
        self.transfers.start(transfer, now_s)
        if not transfer.finished:
            self.under_way[id(transfer)] = transfer
        return transfer

    def _end_moves(self, transfer: Transfer) -> list[Pages]:
        """The pages of a finished transfer, which are the caller's again."""
        moved = [pages[pages != NOWHERE] for pages in transfer.pages]
        for pool, pages in zip(self._cache.pools, moved, strict=True):
            pool.end_move(pages)
        return moved

    def _saved_some(self, transfer: Transfer) -> None:
        self.let_go(Hold(self._end_moves(transfer)))
        self.saved(transfer.moved)
        pages, kept = transfer.pages[0].tolist(), self._cache.pools[0].kept
        for page, key, (stored,) in zip(pages, transfer.keys, transfer.done, strict=True):
            self.counters.saved += stored
            self.counters.not_saved += not stored
            if kept[page]:
                self._saved[page] |= stored and self._keys[page] == key
                self._cache.runs.refresh(PageId(page))  # it may end one

    # From the tiers -----------------------------------------------------------------------------

    def find(self, keys: Sequence[Key]) -> Transfer:
        """Ask the tiers for keys; `where` is set when it is finished, maybe at once."""
        return self._start(Kind.FIND, keys)

    def load(
        self, owner: RequestId, match: Match, key: PrefixKey, keys: Sequence[Key],
        where: Sequence[int],
    ) -> Load | None:  # fmt: skip
        """Bring the pages of `keys`, which follow a match, if there is room for them now.

        `where` says which tier has each of them.
        """
        cache, count, first = self._cache, len(keys), len(match.pages)
        hold = self.hold(match)
        taken: list[Pages] = []
        for table in range(len(cache.pools)):
            begin, end = 0, (first + count) * cache.page_size
            if table:
                begin = max(0, cache.windows[table].first_visible_page(end) - first)
            pages = cache.take(table, [owner], [count - begin], give_back=False)
            if pages is None:
                for other, of_table in enumerate(taken):
                    cache.pools[other].drop_refs(of_table[of_table != NOWHERE])
                self.let_go(hold)
                return None
            taken.append(np.concatenate([np.full(begin, NOWHERE, dtype=np.int32), pages]))
        for table, pages in enumerate(taken):
            moving = pages[pages != NOWHERE]
            cache.pools[table].start_move(moving)
            self.arriving[table] += len(moving)
        transfer = self._start(Kind.LOAD, keys, tuple(taken), where)
        load = self._loads[id(transfer)] = Load(transfer, key, match.last, hold, cache.now_s)
        self.loading.update((one, load) for one in keys)
        return load

    def hold(self, match: Match) -> Hold:
        """Reference the pages of a match, so that they stay."""
        windows = self._cache.windows.values()
        pages = [match.pages, *(window.companions(match.pages)[1] for window in windows)]
        if len(match.pages):
            for pool, of_table in zip(self._cache.pools, pages, strict=True):
                pool.add_refs(of_table)
            self._cache.runs.refresh(PageId(int(match.pages[-1])))
        return Hold(pages)

    def let_go(self, hold: Hold) -> None:
        """Give the references of a hold up."""
        for table, pages in enumerate(hold.pages):
            self._cache.release(table, pages)
        pages = hold.pages[0]
        if len(pages) and self._cache.pools[0].kept[pages[-1]]:
            self._cache.runs.refresh(PageId(int(pages[-1])))

    def finished(self, now_s: float) -> list[tuple[Load, Hold | None]]:
        """Take note of what is done; loads whose pages are indexed now, and held."""
        arrived: list[tuple[Load, Hold | None]] = []
        for transfer in self.transfers.finished(now_s) if self.under_way else ():
            del self.under_way[id(transfer)]
            transfer.finished = True
            for watch in self._cache.runs.watches:
                watch.copied(transfer)
            if transfer.kind is Kind.SAVE:
                self._saved_some(transfer)
            elif transfer.kind is Kind.LOAD:
                load = self._loads.pop(id(transfer))
                arrived.append((load, self._arrived(load, now_s)))
        return arrived

    def _arrived(self, load: Load, now_s: float) -> Hold:
        cache, transfer, count = self._cache, load.transfer, len(load.transfer.done)
        for one in transfer.keys:
            if self.loading.get(one) is load:
                del self.loading[one]
        for table, moved in enumerate(self._end_moves(transfer)):
            self.arriving[table] -= len(moved)
        self.counters.loaded += count
        self.counters.missed += len(transfer.keys) - count
        cache.pools[0].drop_refs(transfer.pages[0][count:])
        held = load.hold.pages
        anchors = transfer.pages[0][:count]
        if count:
            key = PrefixKey(load.key.salt, load.key.units[:count])
            anchors = cache.runs.insert(key, load.after, anchors, now_s)
            self._note(anchors, transfer.keys[:count], True)
            held[0] = np.concatenate([held[0], anchors])
        for table, window in cache.windows.items():
            pages = transfer.pages[table]
            kept = np.zeros(len(pages), dtype=np.bool_)
            for i in range(count):
                if pages[i] != NOWHERE and transfer.done[i][table]:
                    window.adopt(anchors[i : i + 1], pages[i : i + 1], 0, 0)
                    kept[i] = window.companion(anchors[i : i + 1])[0] == pages[i]
            cache.release(table, pages[~kept & (pages != NOWHERE)])
            held[table] = np.concatenate([held[table], pages[kept]])
        return load.hold
