"""Draft trees whose shape is fixed: which child ranks are followed at every depth.

A node is a path of ranks from the anchor: (0,) is the most likely first token, (0, 2) the third
most likely one after it (Medusa, arXiv 2401.10774, section 2.1.2). Nodes stand in the order of how
likely their whole path is accepted, so that the first nodes of a tree are the best smaller one, and
ranks may be skipped: a tree that was calibrated on Medusa heads may do so (`tree_paths` has trees
in the order of their depths).
"""

import heapq
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from interlock.plugins.speculative.heads.tree_paths import Path


def chance(depth: int, rank: int) -> float:
    """How often the child of this rank is right where its parent is, roughly.

    Falls with the depth (1 is the first) and with the square of the rank, as Medusa's calibration
    of its heads does; only the order of nodes follows from it.
    """
    return 0.6 * 0.9 ** (depth - 1) / (1 + rank) ** 2


def path_chance(path: Path) -> float:
    """The product over a path: how often all of it is right."""
    product = 1.0
    for depth, rank in enumerate(path, start=1):
        product *= chance(depth, rank)
    return product


@dataclass(frozen=True)
class Level:
    """The nodes of one depth, in the tree's order.

    `rows[i]` says which of the depth before's expanded nodes node i follows, `ranks[i]` which of
    its children it is. `inner` are the places in this level of those that are expanded.
    """

    nodes: tuple[int, ...]
    rows: tuple[int, ...]
    ranks: tuple[int, ...]
    inner: tuple[int, ...]

    @property
    def width(self) -> int:
        """Most children of one node that must be known."""
        return max(self.ranks) + 1


@dataclass(frozen=True)
class FixedTree:
    """Paths, parents before children and the likelier one first."""

    paths: tuple[Path, ...]

    @staticmethod
    def of(paths: Iterable[Path]) -> "FixedTree":
        """The tree of these paths, which have no `path_problems`, in order."""
        return FixedTree(tuple(sorted(paths, key=lambda path: (-path_chance(path), path))))

    @staticmethod
    def chain(length: int) -> "FixedTree":
        """Only the most likely token of every depth."""
        return FixedTree(tuple((0,) * depth for depth in range(1, length + 1)))

    @staticmethod
    def best(size: int, depth: int) -> "FixedTree":
        """The `size` nodes within this depth whose paths are the likeliest, found greedily."""
        found: list[Path] = []
        waiting: list[tuple[float, Path]] = [(-chance(1, 0), (0,))]
        while len(found) < size:
            _, path = heapq.heappop(waiting)
            found.append(path)
            sibling = (*path[:-1], path[-1] + 1)
            for after in [sibling, (*path, 0)][: 1 + (len(path) < depth)]:
                heapq.heappush(waiting, (-path_chance(after), after))
        return FixedTree.of(found)

    @cached_property
    def parents(self) -> tuple[int, ...] | None:
        """See Draft: the node before each, -1 for the anchor; None for a chain."""
        place = {path: node for node, path in enumerate(self.paths)}
        found = tuple(place.get(path[:-1], -1) for path in self.paths)
        return None if found == tuple(range(-1, len(found) - 1)) else found

    def first_parents(self, count: int) -> tuple[int, ...] | None:
        """`parents` of the first `count` nodes."""
        return None if self.parents is None else self.parents[:count]

    @property
    def depth(self) -> int:
        """Tokens of the longest path."""
        return max(map(len, self.paths))

    def deepest(self, count: int) -> int:
        """Tokens of the longest path among the first `count` nodes."""
        return max(map(len, self.paths[:count]), default=0)

    @cached_property
    def levels(self) -> tuple[Level, ...]:
        """The nodes of depth 1, 2, ..."""
        expanded = {path[:-1] for path in self.paths}
        before: dict[Path, int] = {(): 0}
        levels = []
        for depth in range(1, self.depth + 1):
            of_depth = [(n, path) for n, path in enumerate(self.paths) if len(path) == depth]
            inner = [i for i, (_, path) in enumerate(of_depth) if path in expanded]
            levels.append(
                Level(
                    nodes=tuple(node for node, _ in of_depth),
                    rows=tuple(before[path[:-1]] for _, path in of_depth),
                    ranks=tuple(path[-1] for _, path in of_depth),
                    inner=tuple(inner),
                )
            )
            before = {of_depth[i][1]: row for row, i in enumerate(inner)}
        return tuple(levels)
