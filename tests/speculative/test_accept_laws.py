"""The laws of what verifiers emit, computed exactly; and published mistakes, which must show."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from interlock.core.batch import Draft
from interlock.core.streams import Purpose
from interlock.core.testing.draft_cases import (
    Case,
    continued,
    drawn_chains,
    drawn_trees,
    expected_accepted,
    inverse,
    law_error,
    paths_of,
    random_laws,
    verdict_laws,
)
from interlock.core.testing.draft_rounds import rounds_law
from interlock.core.testing.exact_laws import outcome_laws
from interlock.core.testing.verifier_contract import LAW_ERROR
from interlock.core.verifier import Verdict
from interlock.plugins.speculative.verifiers.block import Block
from interlock.plugins.speculative.verifiers.ratio import Ratio
from interlock.plugins.speculative.verifiers.recursive import Recursive
from interlock.plugins.speculative.verifiers.rejection import DraftsVerifier
from interlock.plugins.speculative.verifiers.target_only import TargetOnly
from interlock.plugins.speculative.verifiers.typical import Typical

BIAS = 1e-3
"""A published mistake changes some probability by more than this here (most by far more)."""


def pair(vocab, depth, seed):
    return random_laws(vocab, depth, seed), random_laws(vocab, depth, seed + 100)


def test_thresholds_and_inverse_transforms_are_integrated_exactly():
    law = np.array([0.1, 0.0, 0.65, 0.25])

    def play(cases, numbers):
        drawn = inverse(np.tile(law, (len(numbers), 1)), numbers[:, 1])
        pairs = zip(cases.tolist(), numbers[:, 0].tolist(), drawn, strict=True)
        return ["low" if number < (0.3, 1.0)[case] else token for case, number, token in pairs]

    first, second = outcome_laws(play, 2, 3)
    assert first == pytest.approx({"low": 0.3, 0: 0.07, 2: 0.455, 3: 0.175}, abs=1e-15)
    assert second == {"low": 1.0}


@pytest.mark.parametrize("rule", [TargetOnly, Ratio, Block, Recursive])
def test_longer_chains_of_drawn_tokens_are_exact(rule):
    target, drafts = pair(3, 3, 31)
    assert law_error(rule(), drawn_chains(drafts, 3), target) <= LAW_ERROR


@pytest.mark.parametrize("replaced", [True, False])
def test_two_levels_of_drawn_siblings_are_exact(replaced):
    for vocab, shape, seed in ((2, (2, 2), 41), (4, (3,), 42)):
        target, drafts = pair(vocab, 2, seed)
        cases = drawn_trees(drafts, shape, replaced)
        assert sum(case.chance for case in cases) == pytest.approx(1)
        assert law_error(Recursive(), cases, target) <= LAW_ERROR
        assert law_error(TargetOnly(), cases, target) <= LAW_ERROR


@pytest.mark.parametrize("rule", [Ratio, Block, Recursive])
def test_a_chain_cut_to_its_beginning_stays_exact(rule):
    target, drafts = pair(3, 3, 51)
    cases = [Case(c.draft.first(2), c.chance) for c in drawn_chains(drafts, 3)]
    assert law_error(rule(), cases, target) <= LAW_ERROR


def test_a_tree_cut_to_its_beginning_stays_exact():
    target, drafts = pair(3, 2, 52)
    cases = [Case(c.draft.first(3), c.chance) for c in drawn_trees(drafts, (2, 1), False)]
    assert law_error(Recursive(), cases, target) <= LAW_ERROR


@settings(max_examples=6, deadline=None)
@given(st.integers(0, 10**6))
def test_block_accepts_no_less_than_ratio_in_the_mean(seed):
    target, drafts = pair(3, 2, seed)
    cases = drawn_chains(drafts, 2)
    gain = expected_accepted(Block(), cases, target) - expected_accepted(Ratio(), cases, target)
    assert gain >= -LAW_ERROR


def test_block_accepts_more_than_ratio_on_some_laws_and_the_same_of_chosen_drafts():
    target, drafts = pair(3, 3, 1)
    cases = drawn_chains(drafts, 3)
    ratio, block = (expected_accepted(rule(), cases, target) for rule in (Ratio, Block))
    assert block > ratio + 0.05
    chosen = [Case(Draft(case.draft.tokens), case.chance) for case in cases]
    ratio, block = (expected_accepted(rule(), chosen, target) for rule in (Ratio, Block))
    assert block == pytest.approx(ratio, abs=LAW_ERROR)


def test_the_ratio_rule_accepts_what_the_two_laws_share():
    target, drafts = pair(4, 1, 61)
    cases = drawn_chains(drafts, 1)
    shared = np.minimum(target[()], drafts[()]).sum()
    for rule in (Ratio, Block, Recursive):
        assert expected_accepted(rule(), cases, target) == pytest.approx(shared, abs=LAW_ERROR)


# What follows is wrong on purpose: the same check must find each of it.


def test_a_most_likely_token_is_no_draw_from_its_softmax():
    target, drafts = pair(3, 2, 71)
    token = int(drafts[()].argmax())
    case = Case(Draft((token,), laws=torch.from_numpy(drafts[()][None])), 1.0)
    for rule in (Ratio, Block, Recursive):
        assert law_error(rule(), [case], target) > BIAS
        assert law_error(rule(), [Case(Draft((token,)), 1.0)], target) <= LAW_ERROR


def test_siblings_drawn_without_replacement_are_no_draws_from_the_whole_law():
    target, drafts = pair(4, 1, 72)
    right = drawn_trees(drafts, (3,), replaced=False)
    whole = torch.from_numpy(np.stack([drafts[()]] * 3))
    wrong = [Case(Draft(c.draft.tokens, c.draft.parents, whole), c.chance) for c in right]
    assert law_error(Recursive(), wrong, target) > BIAS
    assert law_error(Recursive(), right, target) <= LAW_ERROR


@pytest.mark.parametrize("rule", [Ratio, Block, Recursive])
def test_the_law_at_another_temperature_is_another_law(rule):
    target, drafts = pair(3, 2, 82)
    cooler = {prefix: law**2 / (law**2).sum() for prefix, law in drafts.items()}
    told = [
        Case(
            Draft(
                c.draft.tokens,
                laws=torch.from_numpy(np.stack([cooler[path] for path in paths_of(c.draft)[:-1]])),
            ),
            c.chance,
        )
        for c in drawn_chains(drafts, 2)
    ]
    assert law_error(rule(), told, target) > BIAS


@pytest.mark.parametrize("rule", [Ratio, Block, Recursive])
def test_dropping_a_candidate_for_what_it_is_shows(rule):
    """So does a grammar that trims, and a threshold on the candidate's own chance."""
    target, drafts = pair(3, 2, 74)
    cases = drawn_chains(drafts, 2)
    trimmed = [
        Case(c.draft.first(next((i for i, t in enumerate(c.draft.tokens) if t == 1), 2)), c.chance)
        for c in cases
    ]
    assert law_error(rule(), trimmed, target) > BIAS
    assert law_error(TargetOnly(), trimmed, target) <= LAW_ERROR
    assert law_error(rule(), cases, target) <= LAW_ERROR


class PlainAfterRefusal(Ratio):
    """Draws from the target's law, not from what is left of it."""

    def judge(self, owned, rows):
        verdicts = super().judge(owned, rows)
        plain = rows.sample()
        return [
            Verdict(v.path, plain[one.first + len(v.path)])
            for one, v in zip(owned, verdicts, strict=True)
        ]


class MatchAtEveryRow(DraftsVerifier):
    """Takes the longest path on which each leaf's own draws agree: prefixes are tried twice."""

    def judge(self, owned, rows):
        verdicts = []
        for draft, first in owned:
            assert draft.parents is not None
            laws_NV = rows.laws().numpy()
            found = [((), inverse(laws_NV[[first]], rows.uniforms(Purpose.TARGET)[[first]])[0])]
            for sample, token in enumerate(draft.tokens):
                number = rows.uniforms(Purpose.ACCEPT, sample)[[first]]
                if inverse(laws_NV[[first]], number)[0] == token:
                    end = first + 1 + sample
                    last = inverse(laws_NV[[end]], rows.uniforms(Purpose.TARGET)[[end]])[0]
                    found.append(((sample,), last))
            verdicts.append(Verdict(*max(found, key=lambda one: len(one[0]))))
        return verdicts


def test_a_draw_from_the_target_after_a_refusal_shows():
    target, drafts = pair(3, 2, 75)
    assert law_error(PlainAfterRefusal(), drawn_chains(drafts, 2), target) > BIAS


def test_a_draw_for_each_candidate_instead_of_each_node_shows():
    target = random_laws(3, 2, 76)
    case = Case(Draft((0, 1), (-1, -1)), 1.0)
    assert law_error(MatchAtEveryRow(), [case], target) > BIAS
    assert law_error(TargetOnly(), [case], target) <= LAW_ERROR


def test_typical_acceptance_follows_another_law():
    target, drafts = pair(3, 2, 77)
    assert law_error(Typical(0.09, 0.3), drawn_chains(drafts, 2), target) > BIAS


class OneNumberForEachCandidate(Block):
    """Tries each length with the number of its own position, as published pseudocode reads."""

    def judge(self, owned, rows):
        class Shifted:
            laws, sample = rows.laws, rows.sample

            @staticmethod
            def uniforms(purpose, sample=0):
                numbers = rows.uniforms(purpose, sample).copy()
                if purpose == Purpose.ACCEPT:
                    for draft, first in owned:
                        numbers[first] = rows.uniforms(purpose)[first + len(draft.tokens) - 1]
                return numbers

        return super().judge(owned, Shifted)


def rounds_error(rule, **options):
    target, drafts = (random_laws(2, 3, seed, zeros=False) for seed in (5, 55))
    law = rounds_law(rule(), target, drafts, num_drafts=2, length=3, **options)
    return max(abs(law.get(tokens, 0.0) - p) for tokens, p in continued((), target, 3))


def test_a_number_of_a_later_position_may_not_decide_an_earlier_one():
    assert rounds_error(Block) <= LAW_ERROR
    assert rounds_error(OneNumberForEachCandidate) > BIAS


def test_block_needs_drafts_whose_noise_is_new_in_every_round():
    """Candidates after the last accepted one decided the length, so they may not come again."""

    def by_position(anchor, place):
        return anchor + place, 0

    assert rounds_error(Block, draft_key=by_position) > BIAS
    assert rounds_error(Ratio, draft_key=by_position) <= LAW_ERROR


def test_verdicts_of_every_case_have_probability_one():
    target, drafts = pair(3, 2, 78)
    for rule in (Ratio, Block, Recursive, TargetOnly):
        for law in verdict_laws(rule(), drawn_chains(drafts, 2), target):
            assert sum(law.values()) == pytest.approx(1, abs=LAW_ERROR)
