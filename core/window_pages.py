"""Pages of a sliding-window table: which are visible, and which stay behind for prefix hits.

The prefix index speaks in pages of table 0 (anchors). A window page that belongs to an indexed
anchor is its companion; it may be dropped on its own, which only shortens later hits.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from interlock.core.batch import Ints, Pages
from interlock.core.page_pool import PagePool

NONE = -1


def window_pages(window: int, step_tokens: int, page_size: int) -> int:
    """Most pages of a request: a window, a step's new tokens, and a page of overlap."""
    return -(-(window - 1 + step_tokens) // page_size) + 1


class WindowPages:
    """Companions of one window table."""

    def __init__(self, window: int, page_size: int, pool: PagePool, num_anchors: int) -> None:
        self._window = window
        self._page_size = page_size
        self._pool = pool
        self._companion = np.full(num_anchors, NONE, dtype=np.int32)
        self._anchor = np.full(pool.num_pages, NONE, dtype=np.int32)
        self._idle: dict[int, None] = {}
        self.leaving: Callable[[Pages], None] = lambda _anchors: None
        """Told of anchors whose companions are about to be dropped on their own."""

    @property
    def anchors(self) -> Pages:
        """Every anchor that has a companion, those that would be dropped first in that order."""
        every = [*self._anchor[list(self._idle)], *np.flatnonzero(self._companion != NONE)]
        return np.array([*dict.fromkeys(map(int, every))], dtype=np.int32)

    def most_pages(self, step_tokens: int) -> int:
        """Pages a request holds at most."""
        return window_pages(self._window, step_tokens, self._page_size)

    def first_visible_page(self, computed: int) -> int:
        """First page that the query at position `computed` or a later one can see."""
        return max(0, computed - self._window + 1) // self._page_size

    def first_visible_pages(self, computed: Ints) -> Ints:
        """`first_visible_page` of each."""
        return np.maximum(0, computed - self._window + 1) // self._page_size

    def usable_prefixes(self, anchors: Pages) -> NDArray[np.bool_]:
        """For each prefix of 1 .. len(anchors) pages: is its last window still here? O(pages)."""
        counts = np.arange(1, len(anchors) + 1)
        firsts = np.maximum(0, counts * self._page_size - self._window + 1) // self._page_size
        missing = np.concatenate(([0], np.cumsum(self._companion[anchors] == NONE)))
        return np.asarray(missing[counts] == missing[firsts])

    def companions(self, anchors: Pages) -> tuple[int, Pages]:
        """First visible page number and the companions from there, for a hit on all `anchors`."""
        first = self.first_visible_page(len(anchors) * self._page_size)
        return first, self._companion[anchors[first:]]

    def companion(self, anchors: Pages) -> Pages:
        """The companion of each anchor, NONE where it has none."""
        return self._companion[anchors]

    def adopt(self, anchors: Pages, pages: Pages, first_page: int, first_live: int) -> None:
        """Newly indexed anchors take the request's live pages as companions where they lack one."""
        for offset, (anchor, page) in enumerate(zip(anchors.tolist(), pages.tolist(), strict=True)):
            live = first_page + offset >= first_live
            if live and self._companion[anchor] == NONE and self._anchor[page] == NONE:
                self._companion[anchor] = page
                self._anchor[page] = anchor
                self._pool.keep(np.array([page], dtype=np.int32))

    def released(self, pages: Pages) -> None:
        """A request let go of these pages; those kept and idle may be dropped, oldest first."""
        for page in pages.tolist():
            self._idle.pop(page, None)
            if self._pool.kept[page] and self._pool.refs[page] == 0:
                self._idle[page] = None

    def release_oldest(self, count: int) -> None:
        """Free up to `count` idle companions, in the order in which they became idle."""
        gone: list[int] = []
        while len(gone) < count and self._idle:
            page = next(iter(self._idle))
            del self._idle[page]
            if self._pool.kept[page] and self._pool.refs[page] == 0:
                gone.append(page)
        self.leaving(self._anchor[gone])
        for page in gone:
            self._drop(page)

    def anchors_gone(self, anchors: Pages) -> None:
        """The index dropped these anchors; their companions go with them."""
        for anchor in anchors.tolist():
            page = int(self._companion[anchor])
            if page != NONE:
                self._drop(page)

    def _drop(self, page: int) -> None:
        self._companion[self._anchor[page]] = NONE
        self._anchor[page] = NONE
        self._idle.pop(page, None)
        self._pool.forget(np.array([page], dtype=np.int32))
