"""A small set of combinations that covers all pairs."""

import itertools
from collections.abc import Sequence
from heapq import heapify, heappop, heappush
from typing import Any

Cell = dict[str, Any]


def pairwise(cells: Sequence[Cell]) -> list[Cell]:
    """A subset of `cells` in which every pair of levels that occurs in `cells` occurs.

    Greedy: each round takes the cell that covers the most pairs not covered yet (first on ties),
    so the result is the same everywhere.
    """
    pairs = [_pairs(cell) for cell in cells]
    missing: set[tuple[Any, ...]] = set().union(*pairs)
    # What a cell would cover only shrinks, so an old count is a bound: most need no new one.
    bounds = [(-len(found), place) for place, found in enumerate(pairs)]
    heapify(bounds)
    chosen = []
    while missing:
        _, place = heappop(bounds)
        now = (-len(pairs[place] & missing), place)
        if bounds and now > bounds[0]:
            heappush(bounds, now)
            continue
        chosen.append(cells[place])
        missing -= pairs[place]
    return chosen


def _pairs(cell: Cell) -> set[tuple[Any, ...]]:
    return set(itertools.combinations(sorted(cell.items(), key=lambda item: item[0]), 2))
