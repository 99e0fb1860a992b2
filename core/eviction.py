"""The eviction seam: which run of cached pages goes next, among unpinned leaves only."""

from abc import ABC, abstractmethod
from heapq import heappop, heappush
from typing import Any

from interlock.core.prefix_index import Run


class EvictionPolicy(ABC):
    """Ranks candidate runs. A run is a candidate between `add` and the next `discard` or `choose`.

    The core tells the policy about history through `used` and `forgotten` and keeps the statistics
    in the run itself (`created_s`, `last_used_s`, `uses`, `depth_pages`, `len(run.pages)`). While
    a run is a candidate its times and counts stand still; when it is split, it keeps the tail:
    fewer pages, at a greater depth.
    """

    @abstractmethod
    def add(self, run: Run) -> None:
        """The run became a candidate (it is no candidate now)."""

    @abstractmethod
    def discard(self, run: Run) -> None:
        """The run is no candidate any more; does nothing if it was none."""

    @abstractmethod
    def choose(self) -> Run | None:
        """Remove and return the candidate to evict from its tail; None if there is none.

        A run of which only a part had to go comes back through `add`.
        """

    @abstractmethod
    def num_candidates(self) -> int:
        """Candidates now."""

    def used(self, run: Run) -> None:
        """A request just matched pages of this run (statistics are already updated)."""

    def forgotten(self, run: Run) -> None:
        """The run left the index."""


class RankedEviction(EvictionPolicy):
    """Base of policies that are one total order: lowest `rank` goes first, ties by age of entry.

    A rank is read when a run becomes a candidate, and holds until it is none. O(log n).
    """

    def __init__(self) -> None:
        self._heap: list[tuple[Any, int, Run]] = []
        self._entry: dict[int, int] = {}
        self._counter = 0

    @abstractmethod
    def rank(self, run: Run) -> Any:
        """Anything comparable."""

    def add(self, run: Run) -> None:
        """See EvictionPolicy."""
        self._counter += 1
        self._entry[id(run)] = self._counter
        heappush(self._heap, (self.rank(run), self._counter, run))

    def discard(self, run: Run) -> None:
        """See EvictionPolicy. The heap entry stays until it surfaces or half the heap is stale."""
        if self._entry.pop(id(run), None) is None or len(self._heap) < 64:
            return
        if len(self._heap) > 2 * len(self._entry):
            self._heap = [item for item in self._heap if self._entry.get(id(item[2])) == item[1]]
            self._heap.sort()

    def choose(self) -> Run | None:
        """See EvictionPolicy."""
        while self._heap:
            _, number, run = heappop(self._heap)
            if self._entry.get(id(run)) == number:
                del self._entry[id(run)]
                return run
        return None

    def num_candidates(self) -> int:
        """See EvictionPolicy."""
        return len(self._entry)
