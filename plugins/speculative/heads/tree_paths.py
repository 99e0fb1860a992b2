"""Static draft trees as they are published: paths of child ranks from the anchor. No torch.

[0] is the anchor's best child, [0, 1] that child's second best, and so on.
"""

from collections.abc import Sequence
from typing import NamedTuple

from interlock.core.closest import unknown_name

Path = tuple[int, ...]

MC_SIM_7B_63: tuple[Path, ...] = (
    (0,), (1,), (2,), (3,),
    (0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (2, 0), (2, 1), (3, 0),
    (0, 0, 0), (0, 0, 1), (0, 0, 2), (0, 1, 0), (0, 1, 1), (0, 2, 0), (0, 2, 1), (1, 0, 0),
    (0, 0, 0, 0), (0, 0, 0, 1), (0, 0, 0, 2),
    (0, 0, 0, 0, 0), (0, 0, 0, 0, 1),
)  # fmt: skip
"""EAGLE-1's tree for a 7B model (SafeAILab/EAGLE, model/choices.py)."""

NAMED = {"mc_sim_7b_63": MC_SIM_7B_63}


class StaticTree(NamedTuple):
    """A tree's candidates, shallow ones first: sorted by (length, path).

    Candidate i is child number ranks[i] of candidate parents[i] (-1: the anchor), at depths[i].
    """

    parents: tuple[int, ...]
    ranks: tuple[int, ...]
    depths: tuple[int, ...]

    @property
    def depth(self) -> int:
        """Candidates on the longest path."""
        return max(self.depths)

    @property
    def width(self) -> int:
        """Children of the candidate (or anchor) that has the most."""
        return 1 + max(self.ranks)


def static_tree(tree: str | Sequence[Sequence[int]], num_drafts: int) -> StaticTree:
    """The tree of this name, or of these paths; ValueError with every problem.

    Every path's parent and smaller siblings must be there too: a rank that is skipped would be a
    candidate left out for a less likely one. A tree of more than `num_drafts` paths is refused.
    """
    if isinstance(tree, str) and tree not in NAMED:
        raise ValueError(unknown_name("tree", tree, NAMED))
    paths = [tuple(path) for path in (NAMED[tree] if isinstance(tree, str) else tree)]
    problems = path_problems(paths) + _skipped(paths)
    if len(paths) > num_drafts and not problems:
        count = len(paths)
        problems = [f"num_drafts={num_drafts} but tree has {count} paths: set num_drafts={count}"]
    if problems:
        raise ValueError("; ".join(problems))
    paths.sort(key=lambda path: (len(path), path))
    place = {path: candidate for candidate, path in enumerate(paths)}
    return StaticTree(
        parents=tuple(place.get(path[:-1], -1) for path in paths),
        ranks=tuple(path[-1] for path in paths),
        depths=tuple(map(len, paths)),
    )


def path_problems(paths: Sequence[Path]) -> list[str]:
    """What keeps these paths from being a tree, each with the path."""
    if not paths:
        return ["tree=[] has no candidates: give paths of child ranks, [[0],[1],[0,0]]"]
    known = set(paths)
    twice = sorted({path for path in paths if paths.count(path) > 1})
    problems = [f"tree has the path {list(path)} twice" for path in twice]
    for path in paths:
        if not path or min(path) < 0:
            problems.append(f"tree path {list(path)} is not a list of child ranks from 0 on")
        elif len(path) > 1 and path[:-1] not in known:
            problems.append(f"tree path {list(path)} has no parent {list(path[:-1])}")
    return problems


def _skipped(paths: Sequence[Path]) -> list[str]:
    known = set(paths)
    return [
        f"tree path {list(path)} comes before its sibling {[*path[:-1], path[-1] - 1]}"
        for path in paths
        if path and path[-1] > 0 and (*path[:-1], path[-1] - 1) not in known
    ]
