"""The law of what a rule gives when its numbers are uniform: computed, not sampled.

A rule that reads numbers u_1 .. u_D in [0, 1) is played at corners of boxes. Where moving one
number from the box's one end to the other changes the outcome, the place where it changes is found
by bisection, exactly (numbers are multiples of 2**-53), and the box is cut there; a box in which
no number matters has one outcome, and its volume is that outcome's probability. This is right for
rules that are monotone in each number, with the others fixed, as comparisons with thresholds and
inverse transforms are.

Legend: M points, B boxes, D numbers.
"""

from collections.abc import Callable, Hashable, Sequence

import numpy as np
from numpy.typing import NDArray

Points = NDArray[np.float64]
Play = Callable[[NDArray[np.int64], Points], Sequence[Hashable]]
"""(cases [M], numbers [M, D]) -> the outcome of each."""

STEPS = 2**53
"""Numbers are k / STEPS for k from 0 to STEPS - 1."""

_Ints = NDArray[np.int64]


def outcome_laws(play: Play, cases: int, numbers: int) -> list[dict[Hashable, float]]:
    """For each case, the probability of every outcome. Cost: about 60 plays a box."""
    found: list[dict[Hashable, float]] = [{} for _ in range(cases)]
    case_B = np.arange(cases)
    low_BD = np.zeros((cases, numbers), dtype=np.int64)
    high_BD = np.full((cases, numbers), STEPS, dtype=np.int64)
    while True:
        cut_B, outcomes = _first_that_matters(play, case_B, low_BD, high_BD)
        volume_B = np.prod((high_BD - low_BD) / STEPS, axis=1)
        for box in np.flatnonzero(cut_B < 0).tolist():
            law = found[case_B[box]]
            law[outcomes[box]] = law.get(outcomes[box], 0.0) + float(volume_B[box])
        left = np.flatnonzero(cut_B >= 0)
        if not len(left):
            return found
        case_B, low_BD, high_BD, cut_B = case_B[left], low_BD[left], high_BD[left], cut_B[left]
        at_B = _change(play, case_B, low_BD, high_BD, cut_B)
        rows = np.arange(len(left))
        below_BD, above_BD = high_BD.copy(), low_BD.copy()
        below_BD[rows, cut_B], above_BD[rows, cut_B] = at_B, at_B
        case_B = np.concatenate([case_B, case_B])
        low_BD = np.concatenate([low_BD, above_BD])
        high_BD = np.concatenate([below_BD, high_BD])


def _first_that_matters(
    play: Play, case_B: _Ints, low_BD: _Ints, high_BD: _Ints
) -> tuple[_Ints, list[Hashable]]:
    """Of each box the first number whose other end changes the outcome (-1: none), and the outcome
    at the box's lowest corner."""
    boxes, numbers = low_BD.shape
    points = np.repeat(low_BD[None], numbers + 1, axis=0)
    for number in range(numbers):
        points[number + 1, :, number] = high_BD[:, number] - 1
    cases = np.tile(case_B, numbers + 1)
    outcomes = play(cases, points.reshape(-1, numbers) / STEPS)
    base = list(outcomes[:boxes])
    cut_B = np.full(boxes, -1, dtype=np.int64)
    for number in reversed(range(numbers)):
        there = outcomes[boxes * (number + 1) : boxes * (number + 2)]
        cut_B[[a != b for a, b in zip(base, there, strict=True)]] = number
    return cut_B, base


def _change(play: Play, case_B: _Ints, low_BD: _Ints, high_BD: _Ints, number_B: _Ints) -> _Ints:
    """Where, along one number of each box's lowest corner, the outcome first differs."""
    rows = np.arange(len(case_B))
    same_B, other_B = low_BD[rows, number_B], high_BD[rows, number_B] - 1
    base = play(case_B, low_BD / STEPS)
    while (other_B - same_B > 1).any():
        middle_B = (same_B + other_B) // 2
        points_BD = low_BD.copy()
        points_BD[rows, number_B] = middle_B
        there = play(case_B, points_BD / STEPS)
        is_same_B = np.array([a == b for a, b in zip(base, there, strict=True)], dtype=np.bool_)
        same_B = np.where(is_same_B, middle_B, same_B)
        other_B = np.where(is_same_B, other_B, np.maximum(middle_B, same_B))
    return other_B
