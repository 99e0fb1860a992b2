"""The eviction seam: which run of cached pages goes next, among unpinned leaves only."""

from abc import ABC, abstractmethod
from heapq import heappop, heappush
from typing import Any

from interlock.core.prefix_index import Run


class EvictionPolicy(ABC):
    """Ranks candidate runs. A run is a candidate between `add` and the next `discard` or `choose`.

    The core tells the policy about history through `entered`, `used`, `leaving` and `forgotten`,
    and keeps the statistics in the run itself (`created_s`, `last_used_s`, `uses`, `depth_pages`,
    `len(run.pages)`). While a run is a candidate its times and counts stand still; when it is
    split, it keeps the tail: fewer pages, at a greater depth. The part before it is another run
    with a copy of its `state`.
    """

    wants_identity: bool = False
    """True: the index keeps `Run.keys`, by which content is known that comes back."""

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

    def entered(self, run: Run, count: int) -> None:
        """The last `count` pages of the run were just indexed (statistics are already set)."""

    def used(self, run: Run) -> None:
        """A request just matched pages of this run (statistics are already updated)."""

    def leaving(self, run: Run, count: int) -> None:
        """The last `count` pages of the run, which is no candidate now, are about to leave."""

    def forgotten(self, run: Run) -> None:
        """The run left the index: it has no pages any more."""

    def expired(self, now_s: float) -> Run | None:
        """Remove and return a candidate that has to go though no page is needed; None: no more.

        Asked before each step, until there is none.
        """
        return None


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
        run = self.peek()
        if run is not None:
            heappop(self._heap)
            del self._entry[id(run)]
        return run

    def peek(self) -> Run | None:
        """What `choose` would return; it stays."""
        while self._heap:
            _, number, run = self._heap[0]
            if self._entry.get(id(run)) == number:
                return run
            heappop(self._heap)
        return None

    def age_of(self, run: Run) -> int | None:
        """A number that is lower the earlier the run became a candidate; None: it is none."""
        return self._entry.get(id(run))

    def holds(self, run: Run) -> bool:
        """True if the run is a candidate now."""
        return id(run) in self._entry

    def num_candidates(self) -> int:
        """See EvictionPolicy."""
        return len(self._entry)
