from itertools import accumulate

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from interlock.core.batch import NO_DRAFT, Draft
from interlock.core.streams import Purpose, uniform
from interlock.core.testing.chi_square import assert_follows
from interlock.core.testing.verifier_contract import (
    ANCHOR,
    LAWS,
    draft_trees,
    emitted,
    first_two_tokens,
    markov_rows,
)
from interlock.core.verifier import TargetRows, Verdict
from interlock.plugins.speculative.verifiers.target_only import TargetOnly


class FixedRows(TargetRows):
    """Draws given by the test."""

    def __init__(self, draws):
        self.draws = draws

    def sample(self):
        return self.draws

    def uniforms(self, purpose, sample=0):
        raise AssertionError("target_only draws nothing itself")

    def laws(self):
        return torch.zeros(len(self.draws), 1)


def verdict_of(draft, draws):
    return TargetOnly().accept([draft], FixedRows(draws))[0]


def inverse_cdf(law, number):
    edges = accumulate(law)
    return next(token for token, edge in enumerate(edges) if edge > number)


def test_a_chain_is_followed_to_its_first_difference():
    draft = Draft((4, 5, 6))
    assert verdict_of(draft, [4, 5, 6, 9]) == Verdict((0, 1, 2), 9)
    assert verdict_of(draft, [4, 8, 6, 9]) == Verdict((0,), 8)
    assert verdict_of(draft, [5, 5, 6, 9]) == Verdict((), 5)


def test_a_tree_is_descended_by_the_draw_at_each_node():
    draft = Draft((4, 5, 6, 7, 4), (-1, -1, 0, 1, 1))
    assert verdict_of(draft, [5, 0, 4, 0, 0, 3]) == Verdict((1, 4), 3)
    assert verdict_of(draft, [4, 7, 0, 0, 0, 0]) == Verdict((0,), 7)
    assert verdict_of(draft, [6, 0, 0, 0, 0, 0]) == Verdict((), 6)


def test_the_first_of_equal_siblings_is_taken():
    draft = Draft((4, 4, 5), (-1, -1, 1))
    assert verdict_of(draft, [4, 1, 5, 2]) == Verdict((0,), 1)


def test_rows_of_several_requests_are_told_apart():
    drafts = [Draft((1,)), NO_DRAFT, Draft((2, 2), (-1, 0))]
    verdicts = TargetOnly().accept(drafts, FixedRows([1, 5, 6, 2, 2, 7]))
    assert verdicts == [Verdict((0,), 5), Verdict((), 6), Verdict((0, 1), 7)]


def test_rows_that_do_not_fit_the_drafts_are_a_bug_of_the_caller():
    with pytest.raises(AssertionError, match="3 rows for drafts that own 2"):
        TargetOnly().accept([Draft((1,))], FixedRows([1, 2, 3]))


def test_the_case_of_two_tokens_and_a_sampled_draft_has_the_law_of_the_target():
    # Target (.6, .4), draft law (.9, .1), after 'a' (.1, .9): P(a) = .60 and P(a, a) = .06.
    # Tokens 1 and 2 are 'a' and 'b', so that the anchor (token 0) has a law of its own.
    laws = ((0.0, 0.6, 0.4), (0.0, 0.1, 0.9), (0.0, 0.5, 0.5))
    count = 20_000
    drafts = [Draft((1 if uniform(seed, 0, Purpose.DRAFT) < 0.9 else 2,)) for seed in range(count)]
    pairs = first_two_tokens(TargetOnly(), drafts, laws)
    a_a, a_b = pairs.count((1, 1)), pairs.count((1, 2))
    assert_follows([a_a, a_b, count - a_a - a_b], [0.06, 0.54, 0.40])


def test_the_same_case_is_exact_over_a_grid_of_uniform_numbers():
    # Every law is a multiple of 1/10, so ten numbers per position enumerate it exactly.
    counts = dict.fromkeys([(0, 0), (0, 1), (1,), (1, 0), (1, 1), (0,)], 0)
    grid = [(step + 0.5) / 10 for step in range(10)]
    for token, weight in ((0, 9), (1, 1)):
        for first in grid:
            for second in grid:
                draws = [inverse_cdf((0.6, 0.4), first), inverse_cdf((0.1, 0.9), second)]
                draft = Draft((token,))
                counts[tuple(emitted(draft, verdict_of(draft, draws)))] += weight
    assert sum(n for tokens, n in counts.items() if tokens[0] == 0) == 600
    accepted = counts[0, 0] + counts[0, 1]
    assert accepted == 540  # the draft is 'a' (.9) and so is the target (.6)
    assert counts[0, 0] == 54  # P(a) * .1 of the accepted ones: the bonus is the target's


@settings(max_examples=60, deadline=None)
@given(st.lists(draft_trees(), min_size=12, max_size=12), st.integers(0, 2**64 - 1))
def test_tokens_are_those_of_plain_decoding_under_the_same_noise(drafts, seed):
    output = []
    for draft in drafts:
        rows = markov_rows(
            [draft], [seed], anchors=[output[-1] if output else ANCHOR], position=len(output)
        )
        (verdict,) = TargetOnly().accept([draft], rows)
        output += emitted(draft, verdict)
    plain = []
    for position in range(len(output)):
        law = LAWS[plain[-1] if plain else ANCHOR]
        plain.append(inverse_cdf(law, uniform(seed, position, Purpose.TARGET)))
    assert output == plain
