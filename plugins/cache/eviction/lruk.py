"""LRU-K: the run whose last use but K - 1 is longest ago goes first."""

from collections.abc import Iterable, Mapping
from typing import Any

from interlock.core.component import BuildContext
from interlock.core.eviction import RankedEviction
from interlock.core.prefix_index import Run
from interlock.plugins.cache.eviction import LRUKConfig
from interlock.plugins.cache.eviction.ghosts import Ghosts, keys_of

NEVER = float("-inf")


class LRUKEviction(RankedEviction):
    """The run with the largest backward K-distance goes first (O'Neil, O'Neil and Weikum, "The
    LRU-K page replacement algorithm for database disk buffering", SIGMOD 1993, section 2).

    That is the run whose Kth last use is longest ago. Runs used fewer than K times go before all
    others, by last use. Uses within `correlated_s` of the one before count as one, and a burst of
    them shifts earlier times by its length (section 2.1.1). The times of evicted pages are kept for
    as many pages as `history_pages` (section 2.1.2 keeps them for a period instead), so content
    that comes back is not new. Deviation: a run of a burst that goes on may go, since a request in
    progress pins its pages anyway.
    """

    wants_identity = True

    def __init__(self, k: int = 2, correlated_s: float = 0.0, history_pages: int = 0) -> None:
        super().__init__()
        self._correlated_s = correlated_s
        self._names = [f"lruk_{place}" for place in range(1, k + 1)]
        self._history: Ghosts[tuple[float, ...]] = Ghosts(history_pages)

    def entered(self, run: Run, count: int) -> None:
        """A new run begins with the history of what comes back with it, if any."""
        known = self._history.take(keys_of(run, count))
        if self._names[0] in run.state:
            return
        for name, time_s in zip(self._names, known[0] if known else (), strict=False):
            run.state[name] = time_s
        self._refer(run, run.state.get("lruk_last", NEVER))
        run.state["lruk_last"] = run.last_used_s

    def used(self, run: Run) -> None:
        """A use at `run.last_used_s`."""
        last = run.state.get("lruk_last", NEVER)
        if run.last_used_s - last > self._correlated_s:
            self._refer(run, last)
        run.state["lruk_last"] = run.last_used_s

    def _refer(self, run: Run, last: float) -> None:
        """One more uncorrelated use: times move by a place, and by how long the last burst was."""
        burst_s = last - run.state[self._names[0]] if last != NEVER else 0.0
        for place in range(len(self._names) - 1, 0, -1):
            earlier = run.state.get(self._names[place - 1], NEVER)
            run.state[self._names[place]] = earlier + burst_s
        run.state[self._names[0]] = run.last_used_s

    def leaving(self, run: Run, count: int) -> None:
        """Remember when its pages were used."""
        times = tuple(run.state.get(name, NEVER) for name in self._names)
        self._history.remember(keys_of(run, count), times)

    def books(self) -> dict[str, Any]:
        """See Books."""
        return {"history": self._history.saved()}

    def open_books(self, books: Mapping[str, Any], runs: Iterable[Run], shift_s: float) -> None:
        """See Books: its times are in the states of runs and in the history."""
        history = [(key, tuple(t + shift_s for t in times)) for key, times in books["history"]]
        self._history.restore(history)
        for run in runs:
            for name in (*self._names, "lruk_last"):
                if name in run.state:
                    run.state[name] += shift_s

    def add(self, run: Run) -> None:
        """See EvictionPolicy."""
        if self._names[0] not in run.state:
            self.entered(run, len(run.pages))
        super().add(run)

    def rank(self, run: Run) -> tuple[float, float, int]:
        """Time of the Kth last use, then of the last one, then depth, deepest first."""
        return run.state.get(self._names[-1], NEVER), run.last_used_s, -run.depth_pages


def build(config: LRUKConfig, context: BuildContext) -> LRUKEviction:
    """The policy without candidates."""
    history = context.num_pages if config.history_pages is None else config.history_pages
    return LRUKEviction(config.k, config.correlated_s, history)
