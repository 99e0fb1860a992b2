"""Which cell each cell is compared with, and within which blocks."""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from interlock.core.seams import SEAMS
from interlock.study.layout import Block, Floats, Layout, block_of
from interlock.study.spec import Cell, Observation, Study, observed


def baseline_of(study: Study, cells: Sequence[Cell]) -> str:
    """The cell with every factor's first level, or with the most of them where none has all."""
    return max(cells, key=lambda cell: num_first(study, cell)).id if cells else ""


def num_first(study: Study, cell: Cell) -> int:
    """In how many factors a cell has the first level."""
    return sum(cell.levels.get(f.name) == f.levels[0].name for f in study.factors)


def references(
    study: Study, cells: Sequence[Cell], observations: Sequence[Observation]
) -> dict[str, str]:
    """Cell -> the cell that it is compared with: the baseline of its own workload.

    Of the cells that served a workload of its own, the one with the most first levels. A cell
    that is its workload's baseline has none; one that never ran is compared with the study's.
    """
    blocks: dict[str, set[Block]] = {cell.id: set() for cell in cells}
    for one in observed(observations):
        blocks.setdefault(one.cell, set()).add(block_of(one))
    best = sorted(cells, key=lambda cell: -num_first(study, cell))
    found = {}
    for cell in cells:
        shared = [one for one in best if blocks[one.id] & blocks[cell.id]]
        reference = (shared or best)[0]
        if reference.id != cell.id:
            found[cell.id] = reference.id
    return found


def paired(layout: Layout, cell: str, reference: str) -> tuple[Floats, int]:
    """Weights [N] of two cells' mean difference over the blocks both have, and their number."""
    weights_N = np.zeros(len(layout.values_N))
    both = [block for block in layout.blocks_of(cell) if block in layout.blocks_of(reference)]
    for block in both:
        for one, sign in ((cell, 1.0), (reference, -1.0)):
            row = layout.row(one, block)
            assert row is not None
            weights_N[row] = sign / len(both)
    return weights_N, len(both)


class Activity:
    """What served the runs of each cell, and what of it acted."""

    def __init__(self, observations: Iterable[Observation]) -> None:
        self._by_cell: dict[str, list[Observation]] = {}
        for one in observed(list(observations)):
            self._by_cell.setdefault(one.cell, []).append(one)

    def inert(self, cell: str) -> tuple[str, ...]:
        """The seams that never acted in any run of a cell."""
        runs = [set(one.inert) for one in self._by_cell.get(cell, [])]
        return tuple(sorted(set.intersection(*runs))) if runs else ()

    def idle(self, cell: str, reference: str) -> tuple[str, ...]:
        """The seams in which two cells differ, if none of these acted in either; else nothing.

        A setting that belongs to no seam counts as acting. Nothing as well where nothing differs:
        equal compositions measure the noise.
        """
        varied = self._varied(cell, reference)
        if any(seam not in SEAMS for seam in varied):
            return ()
        arm, other = set(self.inert(cell)), set(self.inert(reference))
        acted = self._acted(cell)
        for seam in varied:
            if seam not in arm and (seam in acted or seam not in other):
                return ()
        return tuple(sorted(varied))

    def _acted(self, cell: str) -> set[str]:
        return {seam for one in self._by_cell.get(cell, []) for seam in one.acted}

    def _varied(self, cell: str, reference: str) -> set[str]:
        first, second = self._chosen(cell), self._chosen(reference)
        return {
            seam for seam in first.keys() | second.keys() if first.get(seam) != second.get(seam)
        }

    def _chosen(self, cell: str) -> Mapping[str, str]:
        runs = self._by_cell.get(cell, [])
        return runs[0].chosen if runs else {}
