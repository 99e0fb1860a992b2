"""Least frequently used first, by counts that begin when a run is indexed."""

from collections.abc import Iterable, Mapping
from typing import Any

from interlock.core.component import BuildContext
from interlock.core.eviction import RankedEviction
from interlock.core.prefix_index import Run
from interlock.plugins.cache.eviction import LFUConfig

_KEY = "lfu"


class LFUEviction(RankedEviction):
    """The run with the fewest uses goes first; of equals the one unused for longest, then deepest.

    Counts are in-cache ones: they begin at 1 when a run is indexed, and go with it. With `aging` a
    run's key is K = uses + L as of its last use, where L is the key of the run that was evicted
    last: LFU with dynamic aging (Arlitt et al., "Evaluating content management techniques for Web
    proxy caches", Performance Evaluation Review 27(4), 2000, section 4). What was popular long ago
    is overtaken by what is used now, without touching a run when time passes.
    """

    def __init__(self, aging: bool = False) -> None:
        super().__init__()
        self._aging = aging
        self._last_key = 0.0

    def rank(self, run: Run) -> tuple[float, float, int]:
        """Uses (with aging, their key), then last use, then depth, deepest first."""
        return self._key(run), run.last_used_s, -run.depth_pages

    def used(self, run: Run) -> None:
        """One more use, which counts from the key of the run evicted last."""
        if self._aging:
            run.state[_KEY] = run.uses + self._last_key

    def choose(self) -> Run | None:
        """See EvictionPolicy."""
        run = super().choose()
        if run is not None:
            self._last_key = self._key(run)
        return run

    def books(self) -> dict[str, Any]:
        """See Books."""
        return {"last_key": self._last_key}

    def open_books(self, books: Mapping[str, Any], runs: Iterable[Run], shift_s: float) -> None:
        """See Books."""
        self._last_key = books["last_key"]

    def _key(self, run: Run) -> float:
        if not self._aging:
            return run.uses
        return run.state.setdefault(_KEY, run.uses + self._last_key)


def build(config: LFUConfig, _context: BuildContext) -> LFUEviction:
    """The policy without candidates."""
    return LFUEviction(aging=config.aging == "dynamic")
