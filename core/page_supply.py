"""The pages of all tables: how many could be had, and what goes to make room.

Pages that are pinned, or that a copy reads or writes, stay. Allocator, index and eviction policy
only decide.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from interlock.core.allocator import KVAllocator
from interlock.core.batch import Pages
from interlock.core.cache_spec import CacheLayout, Window
from interlock.core.cached_runs import CacheCounters, CachedRuns
from interlock.core.eviction import EvictionPolicy
from interlock.core.page_pool import PagePool
from interlock.core.prefix_index import PrefixIndex
from interlock.core.request import RequestId
from interlock.core.window_pages import WindowPages

if TYPE_CHECKING:
    from interlock.core.tiered_pages import TieredPages


class PageSupply:
    """A pool of each table, the indexed pages of table 0, and the windows that go with them."""

    def __init__(
        self, layout: CacheLayout, allocators: Sequence[KVAllocator], index: PrefixIndex,
        policy: EvictionPolicy, page_size: int, max_step_tokens: int,
    ) -> None:  # fmt: skip
        self.layout = layout
        self.page_size = page_size
        self.pools = [PagePool(allocator) for allocator in allocators]
        self.counters = CacheCounters()
        self.runs = CachedRuns(index, policy, self.pools[0], self.counters)
        self.tiers: TieredPages | None = None
        self.now_s = 0.0
        """When the step being planned, or committed, began or ended."""
        self._max_step_tokens = max_step_tokens
        self.generation = 0
        """Changes whenever a page may have left the index: matches made before are void."""
        self.windows = {
            table: WindowPages(
                lifetime.tokens, page_size, self.pools[table], self.pools[0].num_pages
            )
            for table, lifetime in enumerate(layout.lifetimes)
            if isinstance(lifetime, Window)
        }

    @property
    def index(self) -> PrefixIndex:
        """The prefix index."""
        return self.runs.index

    def pages_for(self, table: int, tokens: int) -> int:
        """Most pages of a table that a request of this many entries ever needs at once.

        A reserving allocator hands a page out once, so a window saves it nothing.
        """
        pages = -(-tokens // self.page_size)
        if table in self.windows and not self.pools[table].allocator.reserves:
            return min(pages, self.windows[table].most_pages(self._max_step_tokens))
        return pages

    def shortage(self, tokens: int) -> str | None:
        """Why a request of this many entries can never fit, or None. The rule of intake."""
        for table, pool in enumerate(self.pools):
            needed = self.pages_for(table, tokens)
            if needed > pool.num_pages:
                return (
                    f"needs {needed} pages of {self.page_size} tokens for {tokens} cached tokens, "
                    f"but the pool has {pool.num_pages} (cache.num_pages)"
                )
        return None

    def available(self, table: int = 0) -> int:
        """Pages that could be had now, evicting every cached one, or as soon as copies end."""
        pool = self.pools[table]
        return pool.allocator.free_pages() + pool.cached + self.coming(table)

    def coming(self, table: int) -> int:
        """Pages that are only being saved: nobody's when that has ended."""
        arriving = self.tiers.arriving[table] if self.tiers else 0
        return self.pools[table].in_transit - arriving

    @property
    def comes_soon(self) -> bool:
        """True while pages that are only being saved could be had by waiting."""
        return any(pool.in_transit and self.coming(t) for t, pool in enumerate(self.pools))

    @property
    def waits_for_copies(self) -> bool:
        """True while some page is in transit."""
        return any(pool.in_transit for pool in self.pools)

    def take(
        self, table: int, owners: Sequence[RequestId], counts: Sequence[int], give_back: bool = True
    ) -> Pages | None:
        """New pages, counts[i] for owners[i], evicting what must go; None if there are too few.

        `give_back`: also at the expense of what waiting requests had loaded.
        """
        pool, count = self.pools[table], sum(counts)
        pages = pool.take(owners, counts)
        if pages is None:
            self.generation += 1
            self._make_room(table, count)
            while give_back and self._lacks(table, count) > 0 and self._give_back():
                self._make_room(table, count)
            pages = pool.take(owners, counts)
        if pages is not None:
            self.counters.pages_taken += count
        return pages

    def _give_back(self) -> bool:
        return self.tiers is not None and self.tiers.give_back()

    def _lacks(self, table: int, count: int) -> int:
        return count - self.pools[table].allocator.free_pages() - self.coming(table)

    def _make_room(self, table: int, count: int) -> None:
        missing = self._lacks(table, count)
        if table in self.windows:
            self.windows[table].release_oldest(missing)
        elif missing > 0:
            self._left(self.runs.evict(missing))

    def expire(self, now_s: float) -> None:
        """Let go of what the eviction policy says has had its time."""
        gone = self.runs.expire(now_s)
        if len(gone):
            self.generation += 1
            self._left(gone)

    def _left(self, gone: Pages) -> None:
        for window in self.windows.values():
            window.anchors_gone(gone)

    def release(self, table: int, pages: Pages) -> None:
        """One reference less to each of these pages of a table."""
        self.pools[table].drop_refs(pages)
        if table in self.windows:
            self.windows[table].released(pages)

    def check(self) -> None:
        """The pool equation of every table, O(1)."""
        for pool in self.pools:
            pool.check()
