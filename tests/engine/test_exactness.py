"""A pairwise-covering set of compositions against the reference; samples of all are a command."""

from collections import Counter

import pytest

from interlock.core.testing.exactness import PARTIAL, TIER, TIERS, VERIFIER, Walk
from interlock.core.testing.walked_cells import all_pairs, verifier_cells

SOME = ("ngram", "suffix tree", "lookahead", "eagle2", "dspark")
"""Some of each kind; the command walks them all, and tests/speculative goes into each."""


@pytest.fixture(scope="module")
def walk(tmp_path_factory):
    walk = Walk(tmp_path_factory.mktemp("models"))
    walk.drafts = {name: walk.drafts[name] for name in SOME}
    return walk


def test_every_pair_of_choices_gives_the_tokens_of_the_reference_run_alone(walk):
    chosen, _, refused = all_pairs(walk)
    of_verifiers = verifier_cells(walk, chosen, models=1)
    assert {cell[VERIFIER] for cell in of_verifiers} == set(walk.registry.names(VERIFIER))
    assert refused
    activity: Counter[str] = Counter()
    for cell in chosen + of_verifiers:
        outcome = walk.run(cell)
        assert not outcome.differences, (cell, outcome.differences)
        activity.update(outcome.activity)
    assert activity["loading_cells"] > activity["tiered_cells"] / 2
    del activity["loads_missed"], activity["loads_given_up"]
    quiet = [name for name, count in activity.items() if count == 0]
    assert not quiet, f"the workload never caused {quiet}"


def test_accepted_cells_have_every_choice_and_every_pair_that_is_not_refused(walk):
    """`belady` alone needs a file that a cell has not."""
    chosen, _, _ = all_pairs(walk)
    for name, levels in walk.factors().items():
        assert {cell[name] for cell in chosen} == {*levels} - {"belady"}, name
    for draft in walk.factors()["spec"]:
        assert {cell["cache/eviction"] for cell in chosen if cell["spec"] == draft} == {
            *walk.factors()["cache/eviction"]
        } - {"belady"}
    tiered = {(cell["cache/index"], cell[TIER]) for cell in chosen}
    indexes = [name for name in walk.factors()["cache/index"] if name != "none"]
    assert tiered == {("none", "none"), *((i, "none") for i in indexes)} | {
        (index, tier) for index in indexes if not index.endswith(PARTIAL) for tier in TIERS
    }
