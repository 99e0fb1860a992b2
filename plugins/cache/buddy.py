"""Pages in runs: power-of-two blocks split and merge, so that a request's pages lie together."""

from bisect import bisect_left, insort

import numpy as np

from interlock.core.allocator import KVAllocator
from interlock.core.batch import Pages
from interlock.core.component import BuildContext
from interlock.core.request import RequestId
from interlock.plugins.cache import BuddyConfig


class BuddyAllocator(KVAllocator):
    """The binary buddy system (Knowlton, CACM 1965) over page ids; nothing is set aside.

    A free block of order k holds 2**k pages and starts at a multiple of that; two free halves of a
    block are one block. An owner's next page is the one behind its last where that is free;
    otherwise a run starts in the smallest free block of at least `run_pages`, or in the largest
    there is. Pages are given back one by one, so they can be shared; any free page serves anybody.
    Taking or giving back a page costs O(log pages) block operations.
    """

    def __init__(self, num_pages: int, run_pages: int = 1) -> None:
        self.num_pages = num_pages
        self._run_pages = run_pages
        self._free = num_pages
        self._blocks: list[list[int]] = [[] for _ in range(num_pages.bit_length() + 1)]
        """Starts of the free blocks of each order, sorted."""
        self._order_at: dict[int, int] = {}
        """Start of each free block -> its order."""
        self._last: dict[RequestId, int] = {}
        start = 0
        while start < num_pages:
            order = (num_pages - start).bit_length() - 1
            self._add(start, order)
            start += 1 << order

    def open(self, owner: RequestId, max_pages: int) -> bool:
        """Always True: nothing is set aside."""
        return True

    def take(self, owner: RequestId, count: int) -> Pages | None:
        """See KVAllocator."""
        if count > self._free:
            return None
        pages: list[int] = []
        last = self._last.get(owner, -1)
        for left in range(count, 0, -1):
            block = self._block_of(last + 1) if last >= 0 else None
            if block is None:
                last = self._start_of_run(max(left, self._run_pages))
                block = self._block_of(last)
                assert block is not None, "a run starts in a free block"
            else:
                last += 1
            self._cut(*block, last)
            pages.append(last)
        if pages:
            self._last[owner] = last
        return np.array(pages, dtype=np.int32)

    def _start_of_run(self, wanted: int) -> int:
        """First page of the smallest free block of so many pages, or of the largest block."""
        order = (wanted - 1).bit_length()
        larger = range(min(order, len(self._blocks)), len(self._blocks))
        smaller = range(min(order, len(self._blocks)) - 1, -1, -1)
        fitting = next(order for order in (*larger, *smaller) if self._blocks[order])
        start: int = self._blocks[fitting][0]
        return start

    def _block_of(self, page: int) -> tuple[int, int] | None:
        """Start and order of the free block that a page is in, if it is free."""
        for order in range(len(self._blocks)):
            start = page >> order << order
            if self._order_at.get(start) == order:
                return start, order
        return None

    def _cut(self, start: int, order: int, page: int) -> None:
        """Take one page out of a free block; the halves without it stay free."""
        self._remove(start, order)
        while order:
            order -= 1
            half = start + (1 << order)
            if page < half:
                self._add(half, order)
            else:
                self._add(start, order)
                start = half
        self._free -= 1

    def _release(self, page: int) -> None:
        """Free a page and join halves as long as both are free."""
        self._free += 1
        order = 0
        while self._order_at.get(page ^ (1 << order)) == order:
            self._remove(page ^ (1 << order), order)
            page &= ~(1 << order)
            order += 1
        self._add(page, order)

    def _add(self, start: int, order: int) -> None:
        self._order_at[start] = order
        insort(self._blocks[order], start)

    def _remove(self, start: int, order: int) -> None:
        del self._order_at[start]
        del self._blocks[order][bisect_left(self._blocks[order], start)]

    def give_back(self, pages: Pages) -> None:
        """See KVAllocator."""
        for page in pages.tolist():
            self._release(page)

    def close(self, owner: RequestId) -> None:
        """See KVAllocator."""
        self._last.pop(owner, None)

    def free_pages(self) -> int:
        """See KVAllocator."""
        return self._free

    def reserved_pages(self) -> int:
        """Always 0."""
        return 0

    def largest_block(self) -> int:
        """Pages of the largest free block."""
        return max((1 << k for k, starts in enumerate(self._blocks) if starts), default=0)

    def check_integrity(self, taken: Pages) -> None:
        """See KVAllocator; also that free blocks are aligned, apart, and merged."""
        super().check_integrity(taken)
        assert sum(map(len, self._blocks)) == len(self._order_at), "a block is listed twice"
        spans = [taken]
        for order, starts in enumerate(self._blocks):
            assert starts == sorted(starts), "blocks out of order"
            for start in starts:
                assert start % (1 << order) == 0, "a block at an odd place"
                assert self._order_at[start] == order, "a block of another order"
                assert self._order_at.get(start ^ (1 << order)) != order, "two free halves"
                spans.append(np.arange(start, start + (1 << order), dtype=np.int32))
        pages = np.sort(np.concatenate(spans))
        assert np.array_equal(pages, np.arange(self.num_pages)), "free blocks are corrupt"


def build(config: BuddyConfig, context: BuildContext) -> BuddyAllocator:
    """The allocator of a pool of `context.num_pages` pages."""
    return BuddyAllocator(context.num_pages, config.run_pages)
