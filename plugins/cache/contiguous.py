"""One contiguous run per request, reserved to its maximum length: the baseline before paging."""

from bisect import bisect_left
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from interlock.core.allocator import KVAllocator
from interlock.core.batch import Pages
from interlock.core.component import BuildContext
from interlock.core.request import RequestId
from interlock.plugins.cache import ContiguousConfig


@dataclass(slots=True)
class _Reservation:
    next_page: int
    end: int


class ContiguousAllocator(KVAllocator):
    """First fit over free runs, as servers allocated before paging (Orca, Yu et al., OSDI 2022).

    Shows both wastes that paging removes. Internal: pages reserved and never taken
    (`reserved_pages()`). External: free pages in runs too short for the next request, seen as
    `largest_grant()` < `free_pages()`; `open` fails when the largest run is too short, however
    many pages are free. Cost: `open` and giving back are linear in the number of free runs.
    """

    reserves = True

    def __init__(self, num_pages: int) -> None:
        self.num_pages = num_pages
        # Free runs [start, end), sorted, never touching each other.
        self._starts: list[int] = [0] if num_pages else []
        self._ends: list[int] = [num_pages] if num_pages else []
        self._reservations: dict[RequestId, _Reservation] = {}
        self._free = num_pages
        self._reserved = 0

    def open(self, owner: RequestId, max_pages: int) -> bool:
        """Reserve the first free run of `max_pages` pages; False if none is long enough."""
        assert owner not in self._reservations, f"request {owner} is already open"
        start = 0
        if max_pages:
            fitting = (
                place
                for place, (start, end) in enumerate(zip(self._starts, self._ends, strict=True))
                if end - start >= max_pages
            )
            place = next(fitting, None)
            if place is None:
                return False
            start = self._cut(place, max_pages)
        self._reservations[owner] = _Reservation(start, start + max_pages)
        self._reserved += max_pages
        return True

    def _cut(self, place: int, count: int) -> int:
        """Remove `count` pages from the front of a free run; returns the first of them."""
        start = self._starts[place]
        if start + count == self._ends[place]:
            del self._starts[place], self._ends[place]
        else:
            self._starts[place] = start + count
        self._free -= count
        return start

    def take(self, owner: RequestId, count: int) -> Pages | None:
        """The next pages of the owner's reservation; None beyond its end."""
        reservation = self._reservations[owner]
        start = reservation.next_page
        if start + count > reservation.end:
            return None
        reservation.next_page = start + count
        self._reserved -= count
        return np.arange(start, start + count, dtype=np.int32)

    def give_back(self, pages: Pages) -> None:
        """See KVAllocator. Any set of taken pages, in any order."""
        if not len(pages):
            return
        ordered = np.sort(pages)
        breaks = np.flatnonzero(np.diff(ordered) != 1) + 1
        for run in np.split(ordered, breaks):
            self._release(int(run[0]), int(run[-1]) + 1)

    def close(self, owner: RequestId) -> None:
        """See KVAllocator."""
        reservation = self._reservations.pop(owner)
        self._reserved -= reservation.end - reservation.next_page
        self._release(reservation.next_page, reservation.end)

    def _release(self, start: int, end: int) -> None:
        """Add a free run, joining the runs that it touches."""
        if start == end:
            return
        self._free += end - start
        place = bisect_left(self._starts, start)
        if place < len(self._starts) and self._starts[place] == end:
            end = self._ends[place]
            del self._starts[place], self._ends[place]
        if place and self._ends[place - 1] == start:
            self._ends[place - 1] = end
        else:
            self._starts.insert(place, start)
            self._ends.insert(place, end)

    def free_pages(self) -> int:
        """See KVAllocator."""
        return self._free

    def reserved_pages(self) -> int:
        """See KVAllocator."""
        return self._reserved

    def largest_grant(self) -> int:
        """Pages of the longest free run."""
        runs = zip(self._starts, self._ends, strict=True)
        return max((end - start for start, end in runs), default=0)

    def check_integrity(self, taken: Pages) -> None:
        """See KVAllocator; also that free runs are sorted, apart, and miss every other page."""
        super().check_integrity(taken)
        runs = list(zip(self._starts, self._ends, strict=True))
        reserved = [(r.next_page, r.end) for r in self._reservations.values()]
        spans = [np.arange(start, end) for start, end in runs + reserved]
        pages = np.sort(np.concatenate([*spans, taken]))
        assert np.array_equal(pages, np.arange(self.num_pages)), "free runs are corrupt"
        assert all(a[1] < b[0] for a, b in pairwise(runs)), "runs touch"
        assert self._free == sum(end - start for start, end in runs), "free count is stale"
        assert self._reserved == sum(end - start for start, end in reserved), "reserved is stale"


def build(_config: ContiguousConfig, context: BuildContext) -> ContiguousAllocator:
    """The allocator of a pool of `context.num_pages` pages."""
    return ContiguousAllocator(context.num_pages)
