"""S3-FIFO: a small queue that most content leaves without reaching the main one."""

from collections.abc import Iterable, Mapping
from typing import Any

from interlock.core.component import BuildContext
from interlock.core.eviction import EvictionPolicy, RankedEviction
from interlock.core.prefix_index import Run
from interlock.plugins.cache.eviction import S3FIFOConfig
from interlock.plugins.cache.eviction.ghosts import Ghosts, keys_of

_PLACE, _FREQUENCY, _MAIN = "s3_place", "s3_frequency", "s3_main"
_MOST = 3.0
"""Frequencies are counters of two bits."""


class _Queue(RankedEviction):
    """Candidates in the order of their places."""

    def rank(self, run: Run) -> float:
        """Its place in the queue."""
        return run.state[_PLACE]


class S3FIFOEviction(EvictionPolicy):
    """Three FIFO queues (Yang et al., "FIFO queues are all you need for cache eviction", SOSP 2023,
    section 4.1 and algorithm 1).

    What enters goes to the small queue, or to the main queue if at least half of it is remembered
    as a ghost. While the small queue holds its share of the pages or more, its oldest run goes and
    becomes a ghost, unless it was used more than once there: then it moves to the main queue, its
    counter cleared. Else the oldest run of the main queue goes, unless its counter is above 0: then
    it comes round again with one less. There are as many ghosts as the main queue has pages.

    Queues hold all pages, in use or not, but only candidates can go; where one queue has none, the
    other is asked. Coming round is paid for by the use that raised the counter: amortised O(log n).
    """

    wants_identity = True

    def __init__(self, num_pages: int, small_share: float = 0.1) -> None:
        self._small_pages = max(1, round(num_pages * small_share))
        self._ghosts: Ghosts[None] = Ghosts(max(1, num_pages - self._small_pages))
        self._queues = (_Queue(), _Queue())
        self._sizes = [0, 0]
        self._places = 0.0

    def entered(self, run: Run, count: int) -> None:
        """A new run takes its place; pages that extend a run follow it."""
        ghosts = len(self._ghosts.take(keys_of(run, count)))
        if _PLACE not in run.state:
            self._enqueue(run, main=2 * ghosts >= count)
            run.state[_FREQUENCY] = 0.0
        self._sizes[int(run.state[_MAIN])] += count

    def _enqueue(self, run: Run, main: bool) -> None:
        self._places += 1.0
        run.state[_PLACE], run.state[_MAIN] = self._places, float(main)

    def used(self, run: Run) -> None:
        """One more use, of those that are counted."""
        run.state[_FREQUENCY] = min(_MOST, run.state.get(_FREQUENCY, 0.0) + 1.0)

    def leaving(self, run: Run, count: int) -> None:
        """Pages of the small queue become ghosts."""
        main = int(run.state[_MAIN])
        self._sizes[main] -= count
        if not main:
            self._ghosts.remember(keys_of(run, count), None)

    def add(self, run: Run) -> None:
        """See EvictionPolicy."""
        if _PLACE not in run.state:
            self.entered(run, len(run.pages))
        self._queues[int(run.state[_MAIN])].add(run)

    def discard(self, run: Run) -> None:
        """See EvictionPolicy."""
        for queue in self._queues:
            queue.discard(run)

    def choose(self) -> Run | None:
        """See EvictionPolicy."""
        small, main = self._queues
        while small.num_candidates() or main.num_candidates():
            full = self._sizes[0] >= self._small_pages
            from_small = bool(small.num_candidates() and (full or not main.num_candidates()))
            run = (small if from_small else main).choose()
            assert run is not None
            if not self._stays(run, from_small):
                return run
        return None

    def _stays(self, run: Run, from_small: bool) -> bool:
        """Move on a run that was used; False for one that has to go."""
        frequency = run.state.get(_FREQUENCY, 0.0)
        if frequency <= float(from_small):
            return False
        if from_small:
            self._sizes[0] -= len(run.pages)
            self._sizes[1] += len(run.pages)
        self._enqueue(run, main=True)
        run.state[_FREQUENCY] = 0.0 if from_small else frequency - 1.0
        self._queues[1].add(run)
        return True

    def age_of(self, run: Run) -> int | None:
        """Whatever the queue: places decide, and no two runs have one place."""
        return next((age for q in self._queues if (age := q.age_of(run)) is not None), None)

    def books(self) -> dict[str, Any]:
        """See Books."""
        return {"ghosts": self._ghosts.saved(), "places": self._places}

    def open_books(self, books: Mapping[str, Any], runs: Iterable[Run], shift_s: float) -> None:
        """See Books."""
        self._ghosts.restore(books["ghosts"])
        self._places = books["places"]
        self._sizes = [0, 0]
        for run in runs:
            self._sizes[int(run.state[_MAIN])] += len(run.pages)

    def num_candidates(self) -> int:
        """See EvictionPolicy."""
        return sum(queue.num_candidates() for queue in self._queues)


def build(config: S3FIFOConfig, context: BuildContext) -> S3FIFOEviction:
    """The policy for a pool of `context.num_pages` pages, without candidates."""
    return S3FIFOEviction(context.num_pages, config.small_share)
