"""The allocator seam: which physical pages a request gets. The core keeps reference counts."""

from abc import ABC, abstractmethod
from collections.abc import Sequence

import numpy as np

from interlock.core.batch import Pages
from interlock.core.request import RequestId


class KVAllocator(ABC):
    """Hands out page ids 0 .. num_pages - 1 of one page table. No page is given twice.

    The core calls `open` when a request is admitted, `take` as it grows, `give_back` for pages
    that nobody references any more (possibly long after `close`, when they were kept by a prefix
    index), and `close` when the request ends or is preempted.
    """

    num_pages: int
    reserves: bool = False
    """True: `open` sets an owner's pages aside until `close`, so the core gives none back early."""

    @abstractmethod
    def open(self, owner: RequestId, max_pages: int) -> bool:
        """Prepare for an owner that will hold at most `max_pages` pages; False: not now.

        A reserving allocator sets pages aside here; others just return True. False changes nothing.
        """

    @abstractmethod
    def take(self, owner: RequestId, count: int) -> Pages | None:
        """`count` more pages for an open owner, in table order; None (and no change) if short."""

    def take_each(self, owners: Sequence[RequestId], counts: Sequence[int]) -> Pages | None:
        """counts[i] more pages for owners[i], one after the other; None (and no change) if short.

        The same pages as `take` for each in turn. Allocators to whom owners are equal can do it at
        once.
        """
        if len(owners) == 1:
            return self.take(owners[0], counts[0])
        if not self.reserves and sum(counts) > self.free_pages():
            return None
        parts = [self.take(*pair) for pair in zip(owners, counts, strict=True)]
        return np.concatenate([np.empty(0, np.int32), *(p for p in parts if p is not None)])

    @abstractmethod
    def give_back(self, pages: Pages) -> None:
        """These pages are free again. Each was taken and not given back since."""

    @abstractmethod
    def close(self, owner: RequestId) -> None:
        """The owner takes no more pages; what was reserved and not taken is free again."""

    @abstractmethod
    def free_pages(self) -> int:
        """Pages that some owner could take now: neither taken nor reserved."""

    @abstractmethod
    def reserved_pages(self) -> int:
        """Pages set aside for open owners and not yet taken."""

    def largest_grant(self) -> int:
        """Pages that one new owner could be given now: all free ones, if they may lie anywhere."""
        return self.free_pages()

    def check_integrity(self, taken: Pages) -> None:
        """Assert that free, reserved and `taken` pages partition the pool. Slow; for tests."""
        assert len(np.unique(taken)) == len(taken), "a page was given twice"
        total = self.free_pages() + self.reserved_pages() + len(taken)
        assert total == self.num_pages, f"{total} pages accounted of {self.num_pages}"
