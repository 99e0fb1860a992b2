"""A pairwise-covering set of compositions against the reference; the full product is a command."""

from collections import Counter

import pytest

from interlock.core.testing.exactness import VERIFIER, Walk, cells, verifier_cells

SOME = ("ngram", "suffix tree", "lookahead", "eagle2", "dspark")
"""Some of each kind; the command walks them all, and tests/speculative goes into each."""


@pytest.fixture(scope="module")
def walk(tmp_path_factory):
    walk = Walk(tmp_path_factory.mktemp("models"))
    walk.drafts = {name: walk.drafts[name] for name in SOME}
    return walk


def test_every_pair_of_choices_gives_the_tokens_of_the_reference_run_alone(walk):
    chosen, refused = cells(walk, full=False)
    drawn = verifier_cells(walk, chosen, models=1)
    assert {cell[VERIFIER] for cell in drawn} == set(walk.registry.names(VERIFIER))
    chosen += drawn
    activity: Counter[str] = Counter()
    for cell in chosen:
        outcome = walk.run(cell)
        assert not outcome.differences, (cell, outcome.differences)
        activity += outcome.activity
    assert len(chosen) >= 15
    assert sum(refused.values()) > 0
    quiet = [
        name
        for name in (
            "hits",
            "evicted",
            "duplicates",
            "preemptions",
            "chunks",
            "accepted",
            "aborted",
            "forked",
            "padding",
        )
        if activity[name] == 0
    ]
    assert not quiet, f"the workload never caused {quiet}"
