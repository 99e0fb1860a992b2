"""Covering arrays of strength 2: few rows in which every pair of levels stands together.

Greedy, one row at a time, after Cohen et al., "The AETG system" (IEEE TSE 1997), section 3, without
its randomness: the row begins with the pair that is uncovered most, and each further factor takes
the level that covers most pairs with those already set.
"""

import itertools
from collections.abc import Sequence

Pair = tuple[int, int, int, int]
"""Factor, its level, a later factor, its level."""


def covering_rows(sizes: Sequence[int]) -> list[tuple[int, ...]]:
    """Rows of level numbers, the first all zero; `sizes` are the factors' numbers of levels.

    Every pair of levels of two factors is in some row. One factor gives a row for each level.
    """
    count = len(sizes)
    if count < 2:
        return [(level,) for size in sizes for level in range(size)]
    left = pairs_of(sizes)
    rows = [tuple([0] * count)]
    left -= pairs_in(rows[0])
    while left:
        row = _next_row(sizes, left)
        rows.append(row)
        left -= pairs_in(row)
    return rows


def pairs_of(sizes: Sequence[int]) -> set[Pair]:
    """All pairs of levels."""
    return {
        (i, a, j, b)
        for i, j in itertools.combinations(range(len(sizes)), 2)
        for a in range(sizes[i])
        for b in range(sizes[j])
    }


def pairs_in(row: Sequence[int]) -> set[Pair]:
    """The pairs of one row."""
    return {(i, row[i], j, row[j]) for i, j in itertools.combinations(range(len(row)), 2)}


def _next_row(sizes: Sequence[int], left: set[Pair]) -> tuple[int, ...]:
    counts: dict[tuple[int, int], int] = {}
    for i, a, j, b in left:
        counts[i, a] = counts.get((i, a), 0) + 1
        counts[j, b] = counts.get((j, b), 0) + 1
    i, a, j, b = max(left, key=lambda p: (counts[p[0], p[1]] + counts[p[2], p[3]], _reversed(p)))
    row: dict[int, int] = {i: a, j: b}
    order = sorted((f for f in range(len(sizes)) if f not in row), key=lambda f: (-sizes[f], f))
    for factor in order:
        row[factor] = max(
            range(sizes[factor]),
            key=lambda level, f=factor: (_gained(f, level, row, left), counts.get((f, level), 0),
                                         -level),  # type: ignore[misc]
        )  # fmt: skip
    return tuple(row[factor] for factor in range(len(sizes)))


def _reversed(pair: Pair) -> tuple[int, ...]:
    """So that of equals the first counts as largest."""
    return tuple(-part for part in pair)


def _gained(factor: int, level: int, row: dict[int, int], left: set[Pair]) -> int:
    return sum(
        ((other, at, factor, level) if other < factor else (factor, level, other, at)) in left
        for other, at in row.items()
    )
