"""The cache as requests see it: page tables, prefix hits, growth, rollback.

Owns what must never be wrong: which pages a request may write, and that only computed and committed
pages become visible.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from interlock.core.allocator import KVAllocator
from interlock.core.batch import Ints, PageCopy, PageId, Pages
from interlock.core.cache_spec import CacheLayout
from interlock.core.eviction import EvictionPolicy
from interlock.core.page_pool import PagePool
from interlock.core.page_supply import PageSupply
from interlock.core.prefix_index import PrefixIndex, PrefixKey
from interlock.core.request import RequestId
from interlock.core.retention import Retention
from interlock.core.token_sequence import TokenSequence

Flags = NDArray[np.bool_]
NO_PAGES: Pages = np.empty(0, dtype=np.int32)


class Match(NamedTuple):
    """A usable prefix: pages of table 0 and how many tokens need not be computed.

    They are indexed pages, or those of `source`, which has rows of that many tokens: then the page
    after them is partly filled where `tokens` ends inside it, and is to be copied.
    """

    pages: Pages
    tokens: int
    source: "Holding | None" = None
    part: PageId | None = None
    """The indexed page to copy where `tokens` ends inside a page and there is no source.

    It is not pinned: copies of a step run in the order of their requests and before its rows, so
    that whoever gets the page in the same step writes to it later.
    """

    @property
    def last(self) -> PageId | None:
        """Its last page, if it has one."""
        return PageId(int(self.pages[-1])) if len(self.pages) else None


@dataclass(slots=True, eq=False)
class Holding:
    """One request's pages: what row `slot` of the cache's columns says of them.

    `counts[t]` places of the row in table t are set; in a window table those below
    `first_live[t]` were freed.
    """

    id: RequestId
    slot: int
    salt: bytes
    sequence: TokenSequence
    retention: Retention | None
    counts: Ints
    first_live: Ints


class KVCache(PageSupply):
    """The supply of pages, behind request-level calls."""

    def __init__(
        self, layout: CacheLayout, allocators: Sequence[KVAllocator], index: PrefixIndex,
        policy: EvictionPolicy, page_size: int, max_requests: int, max_tokens: int,
        max_step_tokens: int, shares_pages: bool = False,
    ) -> None:  # fmt: skip
        """`shares_pages`: requests may fork each other's pages, not only the index's."""
        super().__init__(layout, allocators, index, policy, page_size, max_step_tokens)
        self.shares_pages = shares_pages
        columns = -(-max_tokens // page_size)
        self.max_entries = columns * page_size
        self.tables = tuple(
            np.zeros((max_requests, columns), dtype=np.int32) for _ in layout.lifetimes
        )
        self._matched: tuple[Any, Match] = None, Match(NO_PAGES, 0)
        """What was looked up last, when, and what came of it."""
        self._slots = list(range(max_requests - 1, -1, -1))
        self._gives_back = np.array([not pool.allocator.reserves for pool in self.pools])
        self.counts = np.zeros((max_requests, len(self.pools)), dtype=np.int64)
        self.first_live = np.zeros_like(self.counts)
        self.indexed = np.zeros(max_requests, dtype=np.int64)
        """How many leading pages of table 0 of each slot are in the index."""

    def room(self, tokens: int, match: Match) -> list[tuple[int, int]]:
        """For each table: pages that could be had beyond a match, and those still needed."""
        found = []
        for table, pool in enumerate(self.pools):
            hit = self._shared(table, match)[1]
            idle = int(np.count_nonzero(pool.refs[hit] == pool.moves[hit]))
            found.append((self.available(table) - idle, self.pages_for(table, tokens) - len(hit)))
        return found

    # Prefix hits --------------------------------------------------------------------------------

    def match(self, salt: bytes, sequence: TokenSequence) -> Match:
        """The longest prefix usable by every table; leaves at least one token to compute."""
        if not self.index.retains:
            return Match(NO_PAGES, 0)
        asked = salt, sequence, sequence.length, sequence.rewritten, self.runs.version
        if self._matched[0] != asked or self.windows:  # who waits asks again with every step
            self._matched = asked, self._match(salt, sequence)
        return self._matched[1]

    def _match(self, salt: bytes, sequence: TokenSequence) -> Match:
        usable = sequence.full_pages(sequence.length - 1)
        pages = self.runs.match(PrefixKey(salt, sequence.units(0, usable)))
        count = len(pages)
        if self.windows and count:
            usable_by_all = [w.usable_prefixes(pages) for w in self.windows.values()]
            counts = np.flatnonzero(np.logical_and.reduce(usable_by_all)) + 1
            count = int(counts.max(initial=0))
        return self._with_part(salt, sequence, pages[:count])

    def _with_part(self, salt: bytes, sequence: TokenSequence, pages: Pages) -> Match:
        """A match of whole pages, with what the page after them shares with an indexed one."""
        whole = len(pages) * self.page_size
        units = sequence.row_start(len(pages))
        if not self.windows and len(units) > 1:
            after = PageId(int(pages[-1])) if len(pages) else None
            part = self.runs.partial(salt, after, units)
            same = sequence.entries_of(part.units) if part else 0
            if part and (same := min(same, sequence.length - 1 - whole)) > 0:
                return Match(pages, whole + same, part=part.page)
        return Match(pages, whole)

    def fork(self, source: Holding, entries: int) -> Match | None:
        """A prefix of `entries` computed entries of `source`; None if it has let go of some."""
        if not self.shares_pages:
            return None
        for table, window in self.windows.items():
            if source.first_live[table] > window.first_visible_page(entries):
                return None
        pages = self.tables[0][source.slot, : entries // self.page_size].copy()
        return Match(pages, entries, source)

    def fork_copies(self, holding: Holding, match: Match) -> tuple[PageCopy, ...]:
        """What fills the pages of a holding opened on `match` (and grown) before its first step."""
        page, filled = divmod(match.tokens, self.page_size)
        if match.part is not None:
            own = PageId(int(self.tables[0][holding.slot, page]))
            return () if own == match.part else (PageCopy(0, match.part, own),)
        if match.source is None or filled == 0:
            return ()
        rows = match.source.slot, holding.slot
        pages = [[PageId(int(table[row, page])) for row in rows] for table in self.tables]
        return tuple(PageCopy(table, *pair) for table, pair in enumerate(pages))

    # Life of a holding --------------------------------------------------------------------------

    def open(
        self, id: RequestId, salt: bytes, sequence: TokenSequence, retention: Retention | None,
        max_tokens: int,
        match: Match, now_s: float,
    ) -> Holding | None:  # fmt: skip
        """Start a request on a matched prefix, pinning it; None if an allocator says not now."""
        if not self._slots:
            return None
        opened: list[PagePool] = []
        for table, pool in enumerate(self.pools):
            if not pool.allocator.open(
                id, self.pages_for(table, max_tokens) - len(match.pages) * (table == 0)
            ):
                for done in opened:
                    done.allocator.close(id)
                return None
            opened.append(pool)
        slot = self._slots.pop()
        holding = Holding(
            id, slot, salt, sequence, retention, self.counts[slot], self.first_live[slot]
        )
        self.counts[slot] = self.first_live[slot] = self.indexed[slot] = 0
        self.counters.partial_tokens += 0 if match.part is None else match.tokens % self.page_size
        if len(match.pages):
            self._pin_prefix(holding, match, now_s)
        return holding

    def _pin_prefix(self, holding: Holding, match: Match, now_s: float) -> None:
        pages, source, count = match.pages, match.source, len(match.pages)
        indexed = count if source is None else min(count, int(self.indexed[source.slot]))
        self.counters.hits += source is None
        if indexed:
            self.runs.pin(pages[:indexed], now_s)
        self.indexed[holding.slot] = indexed
        for table, pool in enumerate(self.pools):
            first, shared = self._shared(table, match)
            pool.add_refs(shared if table else pages[indexed:])
            self.tables[table][holding.slot, first:count] = shared
            holding.counts[table], holding.first_live[table] = count, first
        if holding.retention is not None and indexed:
            self._retain(holding, holding.retention, 0, indexed)

    def _shared(self, table: int, match: Match) -> tuple[int, Pages]:
        """The pages of a match in a table, and the number of the first one."""
        if table == 0:
            return 0, match.pages
        window = self.windows[table]
        if match.source is None:
            return window.companions(match.pages)
        first = window.first_visible_page(match.tokens)
        return first, self.tables[table][match.source.slot, first : len(match.pages)].copy()

    def grow(self, holding: Holding, computed: int, entries: int) -> bool:
        """Own pages for entries 0 .. entries - 1; False, and none taken, if they cannot be had.

        `computed` is the request's committed length: windows free what no later query can see.
        """
        self.slide(holding, computed)
        return self.grow_rows(np.array([holding.slot]), [holding.id], np.array([entries]))

    def grow_rows(self, slots: Ints, owners: Sequence[RequestId], entries: Ints) -> bool:
        """Own pages for entries[i] entries in slot slots[i]; False, and none taken, if short.

        What several requests need in one step, in a few array operations a table.
        """
        needed_R = -(-entries // self.page_size)
        taken: list[tuple[int, Ints, Pages]] = []
        for table in range(len(self.pools)):
            counts_R = self.counts[slots, table]
            missing_R = np.maximum(needed_R - counts_R, 0)
            if not missing_R.any():
                continue
            pages = self.take(table, owners, missing_R.tolist())
            if pages is None:
                for other, before_R, given in taken:
                    self.counts[slots, other] = before_R
                    self.pools[other].drop_refs(given)
                return False
            self._enter(table, slots, counts_R, missing_R, pages)
            self.counts[slots, table] = counts_R + missing_R
            taken.append((table, counts_R, pages))
        return True

    def _enter(self, table: int, slots: Ints, first_R: Ints, counts_R: Ints, pages: Pages) -> None:
        """Write counts_R[i] pages into slot slots[i] of a table, from place first_R[i] on."""
        if len(slots) == 1:
            self.tables[table][slots[0], first_R[0] : first_R[0] + len(pages)] = pages
            return
        before_R = np.cumsum(counts_R) - counts_R
        places = np.arange(len(pages)) - np.repeat(before_R - first_R, counts_R)
        self.tables[table][np.repeat(slots, counts_R), places] = pages

    def truncate(self, holding: Holding, entries: int) -> None:
        """Give back pages beyond the first `entries` entries (never indexed ones).

        An allocator that reserves keeps them for the request: nobody else could use them.
        """
        pages = -(-entries // self.page_size)
        assert pages >= self.indexed[holding.slot], "rollback into indexed pages"
        for table in range(len(self.pools)):
            if holding.counts[table] > pages and self._gives_back[table]:
                dropped = self.tables[table][holding.slot, pages : holding.counts[table]].copy()
                holding.counts[table] = pages
                self.pools[table].drop_refs(dropped)

    def slide(self, holding: Holding, computed: int) -> None:
        """Free what no query at entry `computed` or later can see."""
        for table, window in self.windows.items():
            first = holding.first_live[table]
            end = min(window.first_visible_page(computed), holding.counts[table])
            if end > first:
                pages = self.tables[table][holding.slot, first:end].copy()
                holding.first_live[table] = end
                self.release(table, pages)

    def close(self, holding: Holding, now_s: float) -> None:
        """End a request: unpin or free everything it held. Its prefix counts as used until now."""
        for table, pool in enumerate(self.pools):
            first, end = holding.first_live[table], holding.counts[table]
            self.release(table, self.tables[table][holding.slot, first:end].copy())
            pool.allocator.close(holding.id)
        indexed = int(self.indexed[holding.slot])
        if indexed:
            last = PageId(int(self.tables[0][holding.slot, indexed - 1]))
            self.runs.unpinned(last, now_s)
        self._slots.append(holding.slot)

    def index_computed(self, holding: Holding, computed: int, now_s: float) -> None:
        """Make the request's full pages of `computed` committed entries visible to others."""
        first = int(self.indexed[holding.slot])
        end = holding.sequence.full_pages(computed)
        if end <= first or not self.index.retains:
            return
        row = self.tables[0][holding.slot]
        own = row[first:end].copy()
        after = PageId(row.item(first - 1)) if first else None
        key = PrefixKey(holding.salt, holding.sequence.units(first, end))
        pages = self.runs.insert(key, after, own, now_s)
        if pages is not own:
            row[first:end] = pages
        for table, window in self.windows.items():
            window.adopt(
                pages,
                self.tables[table][holding.slot, first:end],
                first,
                holding.first_live[table],
            )
        self.indexed[holding.slot] = end
        if self.tiers is not None:
            self.tiers.indexed(key, after, pages, own)
        if holding.retention is not None:
            self._retain(holding, holding.retention, max(first - 1, 0), end)

    def _retain(self, holding: Holding, wanted: Retention, first: int, end: int) -> None:
        """Tell what the request says of its indexed pages first .. end - 1."""
        prompt, size = holding.sequence.num_prompt, self.page_size
        said = [wanted.of(page * size, prompt) for page in range(first, end)]
        self.runs.retain(self.tables[0][holding.slot, first:end], said)

    # Which of many -----------------------------------------------------------------------------

    def short(self, slots: Ints, entries: Ints) -> Flags:
        """Which slots have no pages yet for so many entries each."""
        lacking: Flags = self.counts[slots] * self.page_size < entries[:, None]
        return np.asarray(np.logical_or.reduce(lacking, axis=1))

    def surplus(self, slots: Ints, entries: Ints) -> Flags:
        """Which slots have pages beyond so many entries, to be given back."""
        above: Flags = (self.counts[slots] - 1) * self.page_size >= entries[:, None]
        return np.asarray(np.logical_or.reduce(above & self._gives_back, axis=1))

    def passed(self, slots: Ints, computed: Ints) -> Flags:
        """Which slots have window pages that no query from these entries on can see."""
        passed = np.zeros(len(slots), dtype=np.bool_)
        for table, window in self.windows.items():
            passed |= window.first_visible_pages(computed) > self.first_live[slots, table]
        return passed

    def unindexed(self, slots: Ints, entries: Ints) -> Flags:
        """Which slots have full pages, of these entries with known keys, not in the index yet."""
        return (entries // self.page_size > self.indexed[slots]) & self.index.retains
