"""The indexed pages of table 0: what is known, who may be evicted, and what goes next.

Between the prefix index and the eviction policy stands one rule: a run is a candidate exactly while
no run follows it and nobody references its last page. Both components are checked here.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from interlock.core.batch import PageId, Pages
from interlock.core.cache_watch import CacheWatch
from interlock.core.errors import ContractError
from interlock.core.eviction import EvictionPolicy
from interlock.core.page_pool import PagePool
from interlock.core.prefix_index import Inserted, Part, PrefixIndex, PrefixKey, Run, Units
from interlock.core.retention import RETAIN_S, Said


@dataclass(slots=True)
class CacheCounters:
    """What the cache did, for the activity report."""

    lookups: int = 0
    """Searches of the index. Who waits while nothing enters or leaves it is looked up once."""
    hits: int = 0
    inserted_pages: int = 0
    evicted_pages: int = 0
    shared_duplicates: int = 0
    pages_taken: int = 0
    partial_tokens: int = 0
    """Hits inside a page: rows that were copied instead of computed."""


class CachedRuns:
    """Index, policy and the pool that owns the pages."""

    def __init__(
        self, index: PrefixIndex, policy: EvictionPolicy, pool: PagePool, counters: CacheCounters
    ) -> None:
        self.index = index
        self.policy = policy
        self._pool = pool
        self._counters = counters
        self._candidates: set[int] = set()
        if policy.wants_identity and not index.keep_keys():
            raise ContractError(f"{type(index).__name__} keeps no keys of pages, which it promised")
        self.leaving: Callable[[Pages], None] = lambda _pages: None
        """Told of pages that are being evicted, while they still have their rows."""
        self.watches: list[CacheWatch] = []
        self.version = 0
        """Changes whenever pages enter or leave the index: matches stay what they are till then."""

    def match(self, key: PrefixKey) -> Pages:
        """Pages of the longest indexed prefix."""
        self._counters.lookups += 1
        pages = self.index.match(key)
        if len(pages) > len(key.units) or not self._pool.are_kept(pages):
            raise ContractError(
                f"{type(self.index).__name__}.match returned pages {pages.tolist()} for "
                f"{len(key.units)} rows, which are more than the rows or not indexed"
            )
        return pages

    def partial(self, salt: bytes, after: PageId | None, units: Units) -> Part | None:
        """See PrefixIndex."""
        part = self.index.partial(salt, after, units)
        if part and not (
            self._pool.are_kept(np.array([part.page])) and 0 < part.units <= len(units)
        ):
            raise ContractError(
                f"{type(self.index).__name__}.partial returned {part}: no such page"
            )
        return part

    def pin(self, pages: Pages, now_s: float) -> None:
        """Reference a matched prefix; its history parts from what follows it in the index."""
        if not self._pool.are_distinct(pages):
            raise ContractError(f"{type(self.index).__name__}.match returned a page twice: {pages}")
        last = PageId(int(pages[-1]))
        self.index.isolate(last)
        self._pool.add_refs(pages)
        run = self._run_of(last)
        self._refresh(run)
        for node in run.path():
            node.last_used_s = now_s
            node.uses += 1
            self.policy.used(node)
        for watch in self.watches:
            watch.used(pages)

    def unpinned(self, last: PageId, now_s: float) -> None:
        """A request let go of the prefix that ends at `last`, which was in use until now.

        Pages that others added to the same run were not: they part from it, and if they are a
        candidate, keep the times that the policy ranked them by.
        """
        self.index.isolate(last)
        run = self._run_of(last)
        for node in run.path():
            node.last_used_s = now_s
        self._refresh(run)

    def insert(self, key: PrefixKey, after: PageId | None, own: Pages, now_s: float) -> Pages:
        """Index a request's computed pages; the pages that stand for them from now on.

        Where the content was known, the request's reference moves to the indexed page and its own
        copy is free again.
        """
        self.version += 1
        inserted = self.index.insert(key, after, own)
        if not self._stand_for(inserted, own):
            raise ContractError(
                f"{type(self.index).__name__}.insert of pages {own} returned {inserted}, which are "
                "neither the caller's pages nor indexed ones"
            )
        known = len(own) - inserted.kept
        if known:
            self._pool.add_refs(inserted.pages[:known])
            self._pool.drop_refs(own[:known])
            self._counters.shared_duplicates += known
            shared = PageId(int(inserted.pages[known - 1]))
            self.index.isolate(shared)
            self._refresh(self._run_of(shared))
        if inserted.kept:
            fresh = own[known:] if known else own
            self._pool.keep(fresh)
            self._counters.inserted_pages += inserted.kept
            self._stamp(fresh, now_s)
        for watch in self.watches:
            watch.stored(key, after, inserted)
        return inserted.pages

    def _stand_for(self, inserted: Inserted, own: Pages) -> bool:
        known = len(own) - inserted.kept
        return (inserted.pages is own and known == 0) or (
            0 <= known <= len(own) == len(inserted.pages)
            and self._pool.are_kept(inserted.pages[:known])
            and np.array_equal(inserted.pages[known:], own[known:])
        )

    def _stamp(self, pages: Pages, now_s: float) -> None:
        remaining = len(pages)
        while remaining > 0:
            run = self._run_of(PageId(pages.item(remaining - 1)))
            if run.uses == 0:
                run.created_s = now_s
                run.uses = 1
            run.last_used_s = now_s
            self.policy.entered(run, min(remaining, len(run.pages)))
            remaining -= len(run.pages)

    def retain(self, pages: Pages, said: Sequence[Said | None]) -> None:
        """What a request says of pages that it holds, which follow each other in the index.

        Where it says different things, runs part. What was said last of a page holds.
        """
        after = [*said[1:], ...]
        ends = [place + 1 for place, one in enumerate(said) if one != after[place]]
        for end in ends:
            self.index.isolate(PageId(int(pages[end - 1])))
        for start, end in zip([0, *ends], ends, strict=False):
            one, node = said[start], self.index.run_of(PageId(int(pages[end - 1])))
            while one is not None and node is not None and end > start:
                node.priority, node.state[RETAIN_S] = one
                end -= len(node.pages)
                node = node.parent

    def evict(self, count: int) -> Pages:
        """Free up to `count` pages, tails of the policy's choices first; returns them."""
        gone: list[Pages] = []
        while count > 0:
            run = self.policy.choose()
            if run is None and not self._candidates:
                break
            if run is None or id(run) not in self._candidates:
                raise ContractError(f"{type(self.policy).__name__}.choose returned no candidate")
            gone.append(self._drop_tail(run, count, expired=False))
            count -= len(gone[-1])
        return np.concatenate(gone) if gone else np.empty(0, dtype=np.int32)

    def expire(self, now_s: float) -> Pages:
        """Free the pages that the policy says have had their time; returns them."""
        gone: list[Pages] = []
        while (run := self.policy.expired(now_s)) is not None:
            if id(run) not in self._candidates:
                raise ContractError(f"{type(self.policy).__name__}.expired returned no candidate")
            gone.append(self._drop_tail(run, len(run.pages), expired=True))
        return np.concatenate(gone) if gone else np.empty(0, dtype=np.int32)

    def _drop_tail(self, run: Run, most: int, expired: bool) -> Pages:
        self.version += 1
        self._candidates.discard(id(run))
        tail = run.pages[-most:]
        in_use = np.flatnonzero(self._pool.refs[tail])
        tail = tail[in_use[-1] + 1 if len(in_use) else 0 :].copy()
        parent, idle = run.parent, len(tail)
        self.policy.leaving(run, idle)
        pages = self.index.drop_tail(run, idle)
        if not np.array_equal(pages, tail):
            raise ContractError(
                f"{type(self.index).__name__}.drop_tail returned {pages}, not pages {tail}"
            )
        self.leaving(pages)
        self._pool.forget(pages)
        self._counters.evicted_pages += idle
        for watch in self.watches:
            watch.removed(pages, expired)
        if len(run.pages):
            self._refresh(run)
        else:
            self.policy.forgotten(run)
            if parent is not None:
                self._refresh(parent)
        return pages

    def refresh(self, last: PageId) -> None:
        """References to pages up to the indexed page `last` changed."""
        self._refresh(self._run_of(last))

    def _refresh(self, run: Run) -> None:
        """Tell the policy if the run became or ceased to be a candidate."""
        idle = self._is_idle_leaf(run)
        if idle == (id(run) in self._candidates):
            return
        if idle:
            self._candidates.add(id(run))
            self.policy.add(run)
        else:
            self._candidates.discard(id(run))
            self.policy.discard(run)

    def _is_idle_leaf(self, run: Run) -> bool:
        return run.children == 0 and bool(self._pool.refs[run.pages[-1]] == 0)

    def _run_of(self, page: PageId) -> Run:
        run = self.index.run_of(page)
        if run is None:
            raise ContractError(f"{type(self.index).__name__} lost page {page}, which is in use")
        return run
