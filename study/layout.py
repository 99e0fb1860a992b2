"""One metric's figures in the order that analysis needs: by cell and block, on the metric's scale.

A block is one repeat of one workload. Runs of unequal workloads are in different blocks, so nothing
ever compares them.

Shapes: N runs, C cells, B blocks.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from interlock.study.spec import Metric, Observation, observed

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Block = tuple[int, str]


@dataclass(frozen=True)
class Layout:
    """The runs that have a figure of one metric, replicas left out."""

    metric: Metric
    cells: tuple[str, ...]
    blocks: tuple[Block, ...]
    values_N: Floats
    """Logarithms for the ratio scale."""
    cell_N: Ints
    """Places in `cells`, all of which occur."""
    block_N: Ints
    place_N: Floats
    """When each ran, in runs since the study's first."""
    aa: tuple[float, ...]
    """Differences within A/A pairs: a second run less the first."""
    unusable: int
    """Runs that have no figure, or none that has a logarithm."""

    def row(self, cell: str, block: Block) -> int | None:
        """The run of a cell in a block."""
        if cell not in self.cells or block not in self.blocks:
            return None
        is_it = (self.cell_N == self.cells.index(cell)) & (self.block_N == self.blocks.index(block))
        found = np.flatnonzero(is_it)
        return int(found[0]) if len(found) else None

    def blocks_of(self, cell: str) -> list[Block]:
        """The blocks in which a cell has a figure, in order."""
        if cell not in self.cells:
            return []
        places = self.block_N[self.cell_N == self.cells.index(cell)]
        return [self.blocks[place] for place in sorted(places.tolist())]


def lay_out(metric: Metric, cells: Sequence[str], observations: Sequence[Observation]) -> Layout:
    """The figures of a metric. Cells keep their order; those without a figure are left out."""
    ran = [one for one in observed(observations) if one.cell in set(cells)]
    values = {id(one): on_scale(metric, one.values.get(metric.key)) for one in ran}
    usable = [one for one in ran if values[id(one)] is not None]
    first = {(one.cell, block_of(one)): one for one in usable if one.replica == 0}
    rows = list(first.values())
    kept = tuple(cell for cell in cells if any(one.cell == cell for one in rows))
    blocks = tuple(sorted({block_of(one) for one in rows}))
    pairs = [(first.get((one.cell, block_of(one))), one) for one in usable if one.replica]
    return Layout(
        metric=metric,
        cells=kept,
        blocks=blocks,
        values_N=np.array([values[id(one)] for one in rows], np.float64),
        cell_N=np.array([kept.index(one.cell) for one in rows], np.int64),
        block_N=np.array([blocks.index(block_of(one)) for one in rows], np.int64),
        place_N=np.array([one.place for one in rows], np.float64),
        aa=tuple(
            (values[id(second)] or 0.0) - (values[id(one)] or 0.0)
            for one, second in pairs
            if one is not None
        ),
        unusable=len(ran) - len(usable),
    )


def block_of(one: Observation) -> Block:
    """What a run may be paired within."""
    return one.repeat, one.workload_sha256


def on_scale(metric: Metric, value: float | None) -> float | None:
    """The figure as differences are taken of it; None where there is none."""
    if value is None or not math.isfinite(value):
        return None
    if metric.scale == "difference":
        return float(value)
    return math.log(value) if value > 0 else None


def off_scale(metric: Metric, difference: float) -> float:
    """A difference as it is reported: of logarithms, the relative change."""
    if metric.scale == "difference":
        return difference
    return math.inf if difference >= 700 else math.expm1(difference)
