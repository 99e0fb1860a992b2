"""Least frequently used first, with uses that fade."""

import math

from interlock.core.component import BuildContext
from interlock.core.eviction import RankedEviction
from interlock.core.prefix_index import Run
from interlock_example_lrfu import LRFUConfig

_WEIGHT = "log2_weight"


class LRFUEviction(RankedEviction):
    """The run with the smallest sum over its uses of 2 ** (-age of the use / half-life) goes first.

    This is LRFU (Lee et al., IEEE Transactions on Computers 50(12), 2001): close to LRU for a short
    half-life, LFU for an endless one. All weights fade by the same factor, so their order does not
    change with time: the weight of a use at t is kept as 2 ** (t / half-life), its logarithm in
    `Run.state`, and no run is touched when time passes. Runs with fewer than `min_uses` uses go
    before all others, so that prompts seen once cannot push out those that come back.
    """

    def __init__(self, half_life_s: float = 600.0, min_uses: int = 2) -> None:
        super().__init__()
        self._half_life_s = half_life_s
        self._min_uses = min_uses

    def rank(self, run: Run) -> tuple[bool, float, float, int]:
        """Uses enough or not, then faded uses, then last use, then depth, deepest first."""
        return run.uses >= self._min_uses, self._weight(run), run.last_used_s, -run.depth_pages

    def used(self, run: Run) -> None:
        """One more use, at `run.last_used_s`."""
        older, newer = self._weight(run), run.last_used_s / self._half_life_s
        high, low = max(older, newer), min(older, newer)
        run.state[_WEIGHT] = high + math.log2(1.0 + 2.0 ** (low - high))

    def _weight(self, run: Run) -> float:
        """log2 of the faded uses; insertion was the first one."""
        return run.state.setdefault(_WEIGHT, run.created_s / self._half_life_s)


def build(config: LRFUConfig, _context: BuildContext) -> LRFUEviction:
    """The policy without candidates."""
    return LRFUEviction(config.half_life_s, config.min_uses)
