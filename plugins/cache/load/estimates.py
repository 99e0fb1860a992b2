"""What loads and steps took so far, and what the next ones should take."""

from collections.abc import Sequence

import numpy as np

from interlock.core.load_policy import LoadOffer
from interlock.core.transfers import Moved

MEMORY = 0.98
"""What a measurement weighs after the next one: about the last fifty count."""


class Line:
    """seconds = a + b * amount, a and b >= 0, by least squares over what was seen lately.

    One amount alone gives a line through the origin.
    """

    def __init__(self) -> None:
        self._sums = np.zeros(5)

    @property
    def known(self) -> bool:
        """True once something was seen."""
        return bool(self._sums[0])

    def see(self, amount: float, seconds: float) -> None:
        """One measurement."""
        self._sums *= MEMORY
        self._sums += (1.0, amount, amount * amount, seconds, amount * seconds)

    def fit(self) -> tuple[float, float]:
        """The line."""
        n, x, xx, y, xy = self._sums
        spread = n * xx - x * x
        slope = (n * xy - x * y) / spread if spread > 1e-9 * n * xx else xy / xx if xx else 0.0
        start = (y - slope * x) / n if n else 0.0
        if start < 0.0:
            start, slope = 0.0, xy / xx
        elif slope < 0.0:
            start, slope = y / n, 0.0
        return float(start), float(slope)


class Estimates:
    """Lines for steps, by tokens, and for loads from each tier, by pages.

    A tier that has not given anything yet is taken to give as it takes.
    """

    def __init__(self) -> None:
        self._steps = Line()
        self._loads: dict[int, Line] = {}
        self._saves: dict[int, Line] = {}

    def stepped(self, tokens: int, seconds: float) -> None:
        """A step of so many tokens took so long."""
        self._steps.see(tokens, seconds)

    def loaded(self, moved: Sequence[Moved]) -> None:
        """What tiers gave and took."""
        for tier, pages, seconds in moved:
            self._loads.setdefault(tier, Line()).see(pages, seconds)

    def saved(self, moved: Sequence[Moved]) -> None:
        """What tiers took."""
        for tier, pages, seconds in moved:
            self._saves.setdefault(tier, Line()).see(pages, seconds)

    def compute_s(self, tokens: int, budget_tokens: int) -> float | None:
        """Of a prompt's tokens in steps of their own; None: no step was seen."""
        if not self._steps.known:
            return None
        step_s, token_s = self._steps.fit()
        return -(-tokens // budget_tokens) * step_s + tokens * token_s

    def load_s(self, tiers: Sequence[int], queued: Sequence[int] = ()) -> float | None:
        """Of pages of these tiers, after the queued ones; None: nothing is known of a tier."""
        total = 0.0
        for tier in {*tiers}:
            line = self._loads.get(tier, self._saves.get(tier))
            if line is None:
                return None
            start, slope = line.fit()
            ahead = queued[tier] if tier < len(queued) else 0
            total += start + slope * (tiers.count(tier) + ahead)
        return total


def without(offer: LoadOffer, pages: int) -> int:
    """The tokens to compute when the first `pages` of an offer are loaded."""
    return offer.pending_tokens - pages * offer.page_size
