"""Pages one at a time from a free list: no fragmentation, no reservation."""

from collections.abc import Sequence

import numpy as np

from interlock.core.allocator import KVAllocator
from interlock.core.batch import Pages
from interlock.core.component import BuildContext
from interlock.core.request import RequestId
from interlock.plugins.cache import PagedConfig


class PagedAllocator(KVAllocator):
    """A stack of free pages: the page given back last goes out first (its lines may be cached).

    The block allocator of vLLM (Kwon et al., SOSP 2023, section 4.2). Reference counts are the
    core's, so there is no owner here. Cost: one copy of the pages given.
    """

    def __init__(self, num_pages: int) -> None:
        self.num_pages = num_pages
        self._stack: Pages = np.arange(num_pages - 1, -1, -1, dtype=np.int32)
        self._height = num_pages

    def open(self, owner: RequestId, max_pages: int) -> bool:
        """Always True: nothing is set aside."""
        return True

    def take(self, owner: RequestId, count: int) -> Pages | None:
        """See KVAllocator. A new pool gives pages in ascending order."""
        if count > self._height:
            return None
        bottom = self._height - count
        pages = self._stack[bottom : self._height][::-1].copy()
        self._height = bottom
        return pages

    def take_each(self, owners: Sequence[RequestId], counts: Sequence[int]) -> Pages | None:
        """See KVAllocator. One slice of the stack for all of them."""
        return self.take(owners[0], sum(counts))

    def give_back(self, pages: Pages) -> None:
        """See KVAllocator. The same pages come out again in the same order."""
        top = self._height + len(pages)
        assert top <= self.num_pages, f"{top} free pages in a pool of {self.num_pages}"
        self._stack[self._height : top] = pages[::-1]
        self._height = top

    def close(self, owner: RequestId) -> None:
        """Nothing was reserved."""

    def free_pages(self) -> int:
        """See KVAllocator."""
        return self._height

    def reserved_pages(self) -> int:
        """Always 0."""
        return 0

    def check_integrity(self, taken: Pages) -> None:
        """See KVAllocator; also that the free list holds exactly the other pages."""
        super().check_integrity(taken)
        pages = np.concatenate([self._stack[: self._height], taken])
        assert np.array_equal(np.sort(pages), np.arange(self.num_pages)), "free list is corrupt"


def build(_config: PagedConfig, context: BuildContext) -> PagedAllocator:
    """The allocator of a pool of `context.num_pages` pages."""
    return PagedAllocator(context.num_pages)
