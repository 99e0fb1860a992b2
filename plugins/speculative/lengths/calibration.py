"""Estimates of acceptance corrected by what was accepted: sequential temperature scaling, online.

For each place in the draft one temperature T: sigma(logit(estimate) / T), from a grid so that the
chances are off least from what was accepted, weighted by rounds (arXiv 2607.05147, section 3.3;
bins, decay, grid and prior weight as in vLLM's adaptive verification). Each place is fitted by
itself, given that all before it were accepted, instead of by the product of all up to it: with
places before it right the two agree, and no fit has to be repeated when an earlier one changes.
A place counts in a round if everything before it was
accepted and it was verified. Requests of different temperature are apart: what a greedy target
accepts is another thing than what a sampling one does. The acceptance rule is one for a run.
"""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from interlock.core.batch import Draft
from interlock.core.draft_length import DraftRound

Floats = NDArray[np.float64]
BINS, MOST_LOGIT = 16, 8.0
DECAY = 0.999
GRID: Floats = np.geomspace(0.125, 8.0, 49)
PRIOR = 64.0
"""Rounds that the drafter's own estimates are worth, spread as the rounds are."""
HOTTEST = 2.0
"""Temperatures above count as this one: requests choose them, and each kind takes memory."""
REFIT = 16
"""Rounds between two fits of a place."""


class Calibration:
    """A temperature for each place and kind of request."""

    def __init__(self) -> None:
        self._places: dict[tuple[int, int], Place] = {}

    def chances(self, draft: Draft, temperature: float) -> list[float]:
        """The draft's estimates, corrected."""
        kind, found = _kind(temperature), []
        for place, chance in enumerate(draft.confidence):
            known = self._places.get((kind, place))
            found.append(float(_sigmoid(_logit(chance) / known.scale)) if known else chance)
        return found

    def observe(self, rounds: Sequence[DraftRound]) -> None:
        """Learn from the rounds of a step: of a chain, places up to the first refused one."""
        for one in rounds:
            kind, accepted = _kind(one.temperature), set(one.path)
            parents = one.draft.parents
            for place, chance in enumerate(one.draft.confidence):
                parent = place - 1 if parents is None else parents[place]
                if parent < 0 or parent in accepted:
                    known = self._places.setdefault((kind, place), Place())
                    known.add(_logit(chance), place in accepted)


class Place:
    """Rounds and acceptances at one place, by bins of the estimate's logit."""

    def __init__(self) -> None:
        self.scale = 1.0
        self._rounds: Floats = np.zeros(BINS)
        self._accepted: Floats = np.zeros(BINS)
        self._logits: Floats = np.zeros(BINS)
        self._since = 0

    def add(self, logit: float, accepted: bool) -> None:
        """Count a round; now and then choose the temperature again."""
        place = min(BINS - 1, int((logit + MOST_LOGIT) / (2 * MOST_LOGIT) * BINS))
        for counts, value in (
            (self._rounds, 1.0), (self._accepted, float(accepted)), (self._logits, logit),
        ):  # fmt: skip
            counts *= DECAY
            counts[place] += value
        self._since += 1
        if self._since >= REFIT:
            self._since = 0
            self._fit()

    def _fit(self) -> None:
        """The temperature whose chances are nearest to the shares accepted, the prior included."""
        seen = self._rounds > 0
        rounds, accepted = self._rounds[seen], self._accepted[seen]
        logits = self._logits[seen] / rounds
        prior = PRIOR * rounds / rounds.sum()
        shares = (accepted + prior * _sigmoid(logits)) / (rounds + prior)
        chances = _sigmoid(logits[None, :] / GRID[:, None])
        errors = np.abs(chances - shares) @ (rounds / rounds.sum())
        near = np.abs(np.log(GRID)) * 1e-9  # of equals the one that changes least
        self.scale = float(GRID[int(np.argmin(errors + near))])


def _kind(temperature: float) -> int:
    """0 for greedy, then one for each half; the last one is for all above."""
    return math.ceil(2 * min(temperature, HOTTEST))


def _logit(chance: float) -> float:
    """Within the bins; what is no number is even odds."""
    chance = min(max(chance, 1e-9), 1 - 1e-9) if chance == chance else 0.5
    return max(-MOST_LOGIT, min(MOST_LOGIT, math.log(chance / (1 - chance))))


def _sigmoid(logit: "Floats | float") -> Floats:
    return np.asarray(1 / (1 + np.exp(-np.asarray(logit))))
