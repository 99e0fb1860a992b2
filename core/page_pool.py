"""Ownership of one table's pages: reference counts, and the equation that must always hold.

A page is free (the allocator's), held (referenced by a request, or reserved for one), cached (kept
by the prefix index and referenced by nobody) or in transit (referenced by nothing but copies to or
from a tier that are under way).
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from interlock.core.allocator import KVAllocator
from interlock.core.batch import Pages
from interlock.core.errors import ContractError
from interlock.core.request import RequestId


class PagePool:
    """Reference counts over an allocator. O(pages given) per call, vectorised."""

    def __init__(self, allocator: KVAllocator) -> None:
        self.allocator = allocator
        self.num_pages = allocator.num_pages
        self.refs = np.zeros(self.num_pages, dtype=np.int32)
        self._order = np.zeros(self.num_pages, dtype=np.int32)
        self.kept = np.zeros(self.num_pages, dtype=np.bool_)
        self.referenced = 0
        self.cached = 0
        self.moves = np.zeros(self.num_pages, dtype=np.int32)
        """How many of a page's references are those of copies under way."""
        self.moving = self.in_transit = 0

    @property
    def held(self) -> int:
        """Pages that requests reference or have reserved."""
        return self.referenced - self.in_transit + self.allocator.reserved_pages()

    def take(self, owners: Sequence[RequestId], counts: Sequence[int]) -> Pages | None:
        """New pages with one reference each, counts[i] for owners[i]; None if there are too few."""
        count = sum(counts)
        pages = self.allocator.take_each(owners, counts)
        if pages is None:
            return None
        if not (len(pages) == count and self._are_free(pages) and self.are_distinct(pages)):
            raise ContractError(
                f"{type(self.allocator).__name__}.take({count}) returned {pages.tolist()}, "
                "which are not as many or not free"
            )
        self.refs[_places(pages)] = 1
        self.referenced += count
        return pages

    def _are_free(self, pages: Pages) -> bool:
        if not len(pages):
            return True
        places = _places(pages)
        return self._exist(pages) and not (self.refs[places].any() or self.kept[places].any())

    def are_kept(self, pages: Pages) -> bool:
        """True when the index holds all of these pages."""
        return len(pages) == 0 or (self._exist(pages) and bool(self.kept[_places(pages)].all()))

    def are_distinct(self, pages: Pages) -> bool:
        """True when none of these existing pages comes twice: each keeps its own place."""
        places, order = _places(pages), np.arange(len(pages), dtype=np.int32)
        self._order[places] = order
        return bool((self._order[places] == order).all())

    def _exist(self, pages: Pages) -> bool:
        return bool(pages.min() >= 0 and pages.max() < self.num_pages)

    def add_refs(self, pages: Pages) -> None:
        """One more reference to each of these kept or referenced pages (no page twice)."""
        places = _places(pages)
        if self.moving:
            self.in_transit -= self._in_transit(pages)
        before = self.refs[places]
        self.refs[places] = before + 1
        fresh = len(before) - int(np.count_nonzero(before))
        self.referenced += fresh
        self.cached -= fresh

    def drop_refs(self, pages: Pages) -> None:
        """One reference less to each (no page twice); pages nobody needs go to the allocator."""
        places = _places(pages)
        left = self.refs[places] - 1
        self.refs[places] = left
        if self.moving:
            self.in_transit += self._in_transit(pages)
        idle = pages[left == 0]
        kept = self.kept[_places(idle)]
        self.referenced -= len(idle)
        self.cached += int(np.count_nonzero(kept))
        freed = idle[~kept]
        if len(freed):
            self.allocator.give_back(freed)

    def start_move(self, pages: Pages) -> None:
        """The caller's reference to each (no page twice) is a copy's now, until `end_move`.

        A page without any other reference is in transit.
        """
        self.moves[pages] += 1
        self.moving += len(pages)
        self.in_transit += self._in_transit(pages)

    def end_move(self, pages: Pages) -> None:
        """The copy is done, or given up: the reference to each is the caller's again."""
        self.in_transit -= self._in_transit(pages)
        self.moves[pages] -= 1
        self.moving -= len(pages)

    def _in_transit(self, pages: Pages) -> int:
        moves = self.moves[pages]
        return int(np.count_nonzero((moves > 0) & (moves == self.refs[pages])))

    def keep(self, pages: Pages) -> None:
        """The index now holds these referenced pages."""
        self.kept[pages.item(0) if len(pages) == 1 else _places(pages)] = True

    def forget(self, pages: Pages) -> None:
        """The index let go of these kept pages; those without a reference are free again."""
        places = _places(pages)
        self.kept[places] = False
        idle = pages[self.refs[places] == 0]
        self.cached -= len(idle)
        if len(idle):
            self.allocator.give_back(idle)

    def check(self) -> None:
        """The pool equation. O(1); called after every step.

        Raises:
            ContractError: pages were lost or gained; names the allocator and the terms.
        """
        free = self.allocator.free_pages()
        if free + self.cached + self.held + self.in_transit != self.num_pages:
            raise ContractError(
                f"{type(self.allocator).__name__}: free {free} + cached {self.cached} + held "
                f"{self.held} + in transit {self.in_transit} != total {self.num_pages} pages"
            )


def _places(pages: Pages) -> NDArray[np.intp]:
    """The same pages as numpy indexes fastest: through int32 it is up to three times slower."""
    return pages.astype(np.intp)
