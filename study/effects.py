"""What a level contributes, averaged over the other factors, and what depends on two levels.

Least squares of block + main effects + two-way interactions over all runs (Box, Hunter and Hunter,
"Statistics for Experimenters", chapters 5 and 10), each level against its factor's first. A study
may lack cells: a term whose column follows from those before it cannot be told from them. It is
left out, taken as zero, and named. Blocks come first, then main effects, then interactions, so that
what a design confounds is given to the simpler term. A composition beside the design has no levels
and a term of its own.

Shapes: N runs, M terms.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import prod

import numpy as np

from interlock.study.layout import Floats, Layout
from interlock.study.spec import Cell, Factor, Study

LevelKey = tuple[str, str]
"""(factor, level)."""
TOLERANCE = 1e-8


@dataclass(frozen=True)
class Model:
    """The terms of a study that its runs can tell apart."""

    mains: dict[LevelKey, Floats]
    """Weights [N] of each level's effect, averaged over the levels of the other factors."""
    interactions: dict[tuple[LevelKey, LevelKey], Floats]
    """Weights of each interaction: by how much the effect of the first changes with the second."""
    aliased_mains: tuple[LevelKey, ...]
    aliased: tuple[tuple[LevelKey, LevelKey], ...]
    """Interactions that are taken as zero."""
    counts: dict[LevelKey, int]
    """Runs at each level."""
    complete: bool
    """Every combination of levels ran as one cell: effects are plain averages, whatever depends on
    what. Else they are what they are if the terms that were left out are none."""


def model_of(study: Study, cells: Sequence[Cell], layout: Layout) -> Model:
    """The model of a layout's runs."""
    levels = {cell.id: cell.levels for cell in cells}
    at = [levels[layout.cells[place]] for place in layout.cell_N.tolist()]
    keys = [(f.name, level.name) for f in study.factors for level in f.levels]
    on = {key: np.array([one.get(key[0]) == key[1] for one in at], np.float64) for key in keys}
    later = [key for f in study.factors for key in _later(f)]
    pairs = [(a, b) for a, b in combinations(later, 2) if a[0] != b[0]]
    blocks_NB = (layout.block_N[:, None] == np.arange(len(layout.blocks))).astype(np.float64)
    columns = _Columns(blocks_NB)
    beside = sorted({cell.id for cell in cells if not cell.levels} & set(layout.cells))
    own = [(layout.cell_N == layout.cells.index(cell)).astype(np.float64) for cell in beside]
    known = len(layout.blocks) + sum(columns.add(column_N) for column_N in own)
    kept_mains = [key for key in later if columns.add(on[key])]
    kept_pairs = [pair for pair in pairs if columns.add(on[pair[0]] * on[pair[1]])]
    solve_MN = columns.solve()[known:]
    rows: dict[object, Floats] = dict(zip([*kept_mains, *kept_pairs], solve_MN, strict=True))
    mains = {key: rows[key] for key in kept_mains}
    interactions = {pair: rows[pair] for pair in kept_pairs}
    return Model(
        mains={key: _averaged(study, key, mains[key], interactions) for key in kept_mains},
        interactions=interactions,
        aliased_mains=tuple(key for key in later if key not in mains),
        aliased=tuple(pair for pair in pairs if pair not in interactions),
        counts={key: int(on[key].sum()) for key in keys},
        complete=_is_complete(study, [levels[cell] for cell in layout.cells if levels[cell]]),
    )


def _is_complete(study: Study, ran: Sequence[Mapping[str, str]]) -> bool:
    different = {tuple(sorted(levels.items())) for levels in ran}
    every = prod(len(factor.levels) for factor in study.factors)
    return len(ran) == len(different) == every


def _later(factor: Factor) -> list[LevelKey]:
    return [(factor.name, level.name) for level in factor.levels[1:]]


def _averaged(
    study: Study,
    key: LevelKey,
    main_N: Floats,
    interactions: dict[tuple[LevelKey, LevelKey], Floats],
) -> Floats:
    """The effect at the first levels plus the mean of its interactions with each other factor.

    Averaged over those levels of the other factor at which it can be told.
    """
    total_N = main_N.copy()
    for other in study.factors:
        found = [
            weights_N
            for pair, weights_N in interactions.items()
            if key in pair and other.name in (pair[0][0], pair[1][0]) and other.name != key[0]
        ]
        if found:
            total_N += np.sum(found, axis=0) / (1 + len(found))
    return total_N


class _Columns:
    """Columns of a design, each taken only if it does not follow from those before."""

    def __init__(self, blocks_NB: Floats) -> None:
        self._kept = [column_N for column_N in blocks_NB.T]
        sizes = np.linalg.norm(blocks_NB, axis=0)
        self._basis = [column_N / size for column_N, size in zip(self._kept, sizes, strict=True)]

    def add(self, column_N: Floats) -> bool:
        """Take it, or say that it follows from the others."""
        left_N = column_N.copy()
        for _ in range(2):  # twice is enough (Giraud and Langou, 2002)
            basis_MN = np.array(self._basis)
            left_N -= basis_MN.T @ (basis_MN @ left_N)
        size = float(np.linalg.norm(left_N))
        if size <= TOLERANCE * max(1.0, float(np.linalg.norm(column_N))):
            return False
        self._basis.append(left_N / size)
        self._kept.append(column_N)
        return True

    def solve(self) -> Floats:
        """The weights with which values give each kept column's coefficient, [M, N]."""
        return np.linalg.pinv(np.array(self._kept).T)
