"""In which order runs happen: blocks of every cell, shuffled anew in each, seeded."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from interlock.study.spec import Cell


@dataclass(frozen=True)
class Place:
    """One run of a study."""

    number: int
    """From 0, over all blocks."""
    cell: Cell
    repeat: int
    replica: int = 0
    """1: the baseline a second time in its block, for what equal compositions differ by."""

    @property
    def folder(self) -> str:
        """Inside the study's folder."""
        return f"cells/{self.cell.id}/r{self.repeat}{'a' * self.replica}"


def run_order(cells: Sequence[Cell], repeats: int, seed: int) -> list[Place]:
    """Every cell once in each of `repeats` blocks, and the baseline (the first) twice."""
    found: list[Place] = []
    for repeat in range(repeats):
        block = [(cell, 0) for cell in cells] + [(cells[0], 1)]
        for at in np.random.default_rng((seed, repeat)).permutation(len(block)):
            cell, replica = block[at]
            found.append(Place(len(found), cell, repeat, replica))
    return found


def block_seed(seed: int, repeat: int) -> int:
    """The run seed of a block: the same for all its cells, another for each repeat."""
    digest = hashlib.sha256(f"study {seed} block {repeat}".encode()).digest()
    return int.from_bytes(digest[:4], "big")
