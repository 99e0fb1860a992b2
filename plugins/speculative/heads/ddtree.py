"""The most likely tree over independent places: DDTree (arXiv 2604.12989, liranringel/ddtree).

Each depth has a law of its own, so a path's probability is the product of its tokens'. The n most
likely paths, prefixes being no less likely than what they lead to, are a tree of n nodes; it has
the largest expected number of accepted candidates under these laws. They are found best first.
"""

import math
from collections.abc import Sequence
from heapq import heappop, heappush

from interlock.core.batch import Draft


def most_likely_tree(
    tokens: Sequence[Sequence[int]], logprobs: Sequence[Sequence[float]], nodes: int
) -> Draft:
    """At most `nodes` candidates, the most likely paths first: any prefix is the best of its size.

    tokens[d] are the most likely tokens at depth d + 1, falling, and logprobs[d] the logarithms of
    their probabilities. A path of equal probability comes after those that were reached before it.
    `confidence` is a candidate's own probability. O(nodes log nodes).
    """
    waiting: list[tuple[float, int, int, int, int, float]] = []
    found: list[tuple[int, int, float]] = []
    reached = 0

    def reach(parent: int, depth: int, rank: int, before: float) -> None:
        """A path that goes on from `parent`, whose logarithm is `before`, with this token."""
        nonlocal reached
        if depth < len(tokens) and rank < len(tokens[depth]):
            score = before + logprobs[depth][rank]
            heappush(waiting, (-score, reached, parent, depth, rank, before))
            reached += 1

    reach(-1, 0, 0, 0.0)
    while waiting and len(found) < nodes:
        score, _, parent, depth, rank, before = heappop(waiting)
        found.append((tokens[depth][rank], parent, math.exp(logprobs[depth][rank])))
        reach(parent, depth, rank + 1, before)
        reach(len(found) - 1, depth + 1, 0, -score)
    return Draft(
        tuple(token for token, _, _ in found),
        tuple(parent for _, parent, _ in found),
        confidence=tuple(chance for _, _, chance in found),
    )
