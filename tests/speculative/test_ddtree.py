"""The best-first tree over independent places, against all paths ranked by brute force."""

import math
from itertools import product

from hypothesis import given, settings
from hypothesis import strategies as st

from interlock.plugins.speculative.heads.ddtree import most_likely_tree

LAW = st.lists(st.integers(1, 9), min_size=1, max_size=4)


def paths_of(draft):
    """Each candidate with its ancestors, as tokens."""
    paths = []
    for token, parent in zip(draft.tokens, draft.parents, strict=True):
        paths.append(((paths[parent] if parent >= 0 else ()), token))
    return paths


def flat(path):
    return (*flat(path[0]), path[1]) if path else ()


@settings(max_examples=60, deadline=None)
@given(st.lists(LAW, min_size=1, max_size=4), st.integers(1, 40))
def test_the_nodes_are_the_most_likely_paths_in_order(weights, nodes):
    laws = [[w / sum(law) for w in sorted(law, reverse=True)] for law in weights]
    tokens = [[10 * depth + rank for rank in range(len(law))] for depth, law in enumerate(laws)]
    draft = most_likely_tree(tokens, [[math.log(p) for p in law] for law in laws], nodes)
    every = [path for depth in range(len(laws)) for path in product(*tokens[: depth + 1])]

    def chance(path):
        return math.prod(laws[depth][token % 10] for depth, token in enumerate(path))

    found = [flat(path) for path in paths_of(draft)]
    assert len(set(found)) == len(found) == min(nodes, len(every))
    assert set(found) <= set(every)
    best = sorted((chance(path) for path in every), reverse=True)
    for path, wanted in zip(found, best, strict=False):
        assert math.isclose(chance(path), wanted, rel_tol=1e-9)
    for token, confidence in zip(draft.tokens, draft.confidence, strict=True):
        assert math.isclose(confidence, laws[token // 10][token % 10], rel_tol=1e-9)


def test_any_prefix_is_the_tree_of_its_size():
    laws = [[-0.5, -1.5, -2.0], [-0.1, -3.0], [-0.7, -0.8]]
    tokens = [[1, 2, 3], [4, 5], [6, 7]]
    whole = most_likely_tree(tokens, laws, 12)
    for size in range(1, 12):
        assert most_likely_tree(tokens, laws, size) == whole.first(size)
    assert all(parent < node for node, parent in enumerate(whole.parents))


def test_impossible_tokens_come_last_and_end_nothing():
    draft = most_likely_tree([[1, 2], [3]], [[0.0, -math.inf], [-math.inf]], 10)
    assert draft.tokens == (1, 2, 3, 3)
    assert draft.confidence == (1.0, 0.0, 0.0, 0.0)
