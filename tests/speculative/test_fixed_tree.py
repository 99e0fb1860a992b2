"""Trees of a fixed shape."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from interlock.core.batch import Draft
from interlock.core.errors import ConfigError
from interlock.plugins.speculative.heads.fixed_tree import FixedTree, path_chance
from interlock.plugins.speculative.heads.medusa_options import HydraConfig, MedusaConfig


@given(st.integers(1, 30), st.integers(1, 5))
def test_the_best_tree_has_the_likeliest_nodes_that_there_are(size, depth):
    tree = FixedTree.best(size, depth)
    assert len(set(tree.paths)) == size
    assert tree.depth <= depth
    ranks = range(max(max(path) for path in tree.paths) + 2)
    others = (
        {
            path
            for length in range(1, depth + 1)
            for path in itertools.product(ranks, repeat=length)
            if path not in tree.paths
        }
        if len(ranks) ** depth < 5000
        else set()
    )
    worst = min(map(path_chance, tree.paths))
    assert all(path_chance(path) <= worst for path in others)


@given(st.integers(1, 30), st.integers(1, 5), st.integers(1, 30))
def test_any_first_nodes_are_the_best_smaller_tree(size, depth, count):
    tree = FixedTree.best(size, depth)
    kept = min(count, size)
    assert tree.paths[:kept] == FixedTree.best(kept, depth).paths
    assert tree.deepest(kept) == max(map(len, tree.paths[:kept]))


@given(st.permutations([(0,), (1,), (0, 0), (0, 1), (1, 0), (0, 0, 0)]))
def test_parents_come_before_children_and_siblings_in_the_order_of_their_ranks(paths):
    tree = FixedTree.of(paths)
    draft = Draft(tuple(range(len(paths))), tree.parents)
    assert draft.depths() == tuple(map(len, tree.paths))
    for node, path in enumerate(tree.paths):
        assert path[-1] == 0 or tree.paths.index((*path[:-1], path[-1] - 1)) < node


def test_a_chain_is_a_draft_without_parents():
    assert FixedTree.chain(3).paths == ((0,), (0, 0), (0, 0, 0))
    assert FixedTree.chain(3).parents is None
    assert FixedTree.best(2, 1).parents == (-1, -1)


@pytest.mark.parametrize("kind", [MedusaConfig, HydraConfig])
def test_all_problems_of_the_options_are_reported_at_once(kind):
    with pytest.raises(ConfigError) as error:
        kind(num_drafts=0, proposal="best", tree=((0,), (1, 0), (), (-1,), (0,)))
    for words in (
        "num_drafts=0 is not a whole number >= 1",
        "no proposal named 'best'",
        "[1, 0]",
        "[-1]",
        "twice",
    ):
        assert words in str(error.value)


def test_a_tree_says_how_many_candidates_it_has():
    with pytest.raises(ConfigError, match=r"num_drafts=3 but tree has 2 paths: set num_drafts=2"):
        MedusaConfig(num_drafts=3, tree=((0,), (1,)))
    for count in (2, None):
        assert MedusaConfig(num_drafts=count, tree=((0,), (1,))).tree == ((0,), (1,))


def test_drawn_candidates_are_chains():
    with pytest.raises(ConfigError, match="proposal=sampled draws chains only"):
        MedusaConfig(num_drafts=4, proposal="sampled", tree="auto")
    with pytest.raises(ConfigError, match="tree=bush is neither chain nor auto"):
        HydraConfig(tree="bush")
