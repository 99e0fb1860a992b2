"""ARC: recency and frequency, with a border that follows what was evicted too early."""

from collections.abc import Iterable, Mapping
from typing import Any

from interlock.core.component import BuildContext
from interlock.core.eviction import EvictionPolicy
from interlock.core.prefix_index import Run
from interlock.plugins.cache.eviction import ARCConfig
from interlock.plugins.cache.eviction.ghosts import Ghosts, keys_of
from interlock.plugins.cache.eviction.lru import LRUEviction

_OFTEN = "arc_often"


class ARCEviction(EvictionPolicy):
    """Adaptive replacement (Megiddo and Modha, "ARC: a self-tuning, low overhead replacement
    cache", FAST 2003, figure 4), in pages.

    Runs seen once (T1) and runs seen again (T2) are each in order of last use. The oldest of T1
    goes while T1 has more pages than its target p, else the oldest of T2. Evicted pages leave
    ghosts (B1, B2): one of B1 that enters again raises p by max(1, B2 / B1), one of B2 lowers it by
    max(1, B1 / B2), and a run of which at least half comes back enters T2. T1 and B1 together keep
    at most c pages and ghosts, all four at most 2c, c being the pages of the pool.

    Deviations: pages are made room for before the core knows what will enter, so p changes after
    the eviction that a ghost's return caused, and the case "x in B2 and T1 as large as p" is not
    told apart. T1 and T2 count pages in use as well, of which only candidates can go.
    """

    wants_identity = True

    def __init__(self, num_pages: int) -> None:
        self._num_pages = num_pages
        self.target = 0.0
        """p: how many pages runs seen once may have."""
        self._lists = (LRUEviction(), LRUEviction())
        self._ghosts: tuple[Ghosts[None], Ghosts[None]] = (Ghosts(num_pages), Ghosts(2 * num_pages))
        self._sizes = [0, 0]

    def entered(self, run: Run, count: int) -> None:
        """Learn from ghosts; a new run is in T1, or in T2 if it comes back.

        Then the oldest ghosts beyond the bounds are forgotten.
        """
        back = self._learn(run, count)
        run.state.setdefault(_OFTEN, float(2 * back >= count))
        self._sizes[int(run.state[_OFTEN])] += count
        once, often = self._ghosts
        while len(once) and self._sizes[0] + len(once) > self._num_pages:
            once.forget_oldest()
        known = sum(self._sizes) + len(once)
        while len(often) and known + len(often) > 2 * self._num_pages:
            often.forget_oldest()

    def _learn(self, run: Run, count: int) -> int:
        """Move the target by each page that comes back; how many did."""
        once, often = self._ghosts
        back = 0
        for key in keys_of(run, count):
            sizes = len(once), len(often)
            if once.take([key]):
                self.target += max(1.0, sizes[1] / sizes[0])
            elif often.take([key]):
                self.target -= max(1.0, sizes[0] / sizes[1])
            else:
                continue
            back += 1
            self.target = min(max(self.target, 0.0), float(self._num_pages))
        return back

    def used(self, run: Run) -> None:
        """What is used again is in T2."""
        if not run.state.get(_OFTEN):
            self._sizes[0] -= len(run.pages)
            self._sizes[1] += len(run.pages)
            run.state[_OFTEN] = 1.0

    def leaving(self, run: Run, count: int) -> None:
        """Its pages become ghosts."""
        often = int(run.state[_OFTEN])
        self._sizes[often] -= count
        self._ghosts[often].remember(keys_of(run, count), None)

    def add(self, run: Run) -> None:
        """See EvictionPolicy."""
        if _OFTEN not in run.state:
            self.entered(run, len(run.pages))
        self._lists[int(run.state[_OFTEN])].add(run)

    def discard(self, run: Run) -> None:
        """See EvictionPolicy."""
        for one in self._lists:
            one.discard(run)

    def choose(self) -> Run | None:
        """See EvictionPolicy."""
        once, often = self._lists
        if once.num_candidates() and (self._sizes[0] > self.target or not often.num_candidates()):
            return once.choose()
        return often.choose()

    def age_of(self, run: Run) -> int | None:
        """Within its list, which is in order of last use."""
        return next((age for one in self._lists if (age := one.age_of(run)) is not None), None)

    def books(self) -> dict[str, Any]:
        """See Books."""
        return {"ghosts": [ghosts.saved() for ghosts in self._ghosts], "target": self.target}

    def open_books(self, books: Mapping[str, Any], runs: Iterable[Run], shift_s: float) -> None:
        """See Books."""
        for ghosts, saved in zip(self._ghosts, books["ghosts"], strict=True):
            ghosts.restore(saved)
        self.target = min(books["target"], float(self._num_pages))
        self._sizes = [0, 0]
        for run in runs:
            self._sizes[int(run.state[_OFTEN])] += len(run.pages)

    def num_candidates(self) -> int:
        """See EvictionPolicy."""
        return sum(one.num_candidates() for one in self._lists)


def build(_config: ARCConfig, context: BuildContext) -> ARCEviction:
    """The policy for a pool of `context.num_pages` pages, without candidates."""
    return ARCEviction(context.num_pages)
