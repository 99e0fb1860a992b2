"""A component that breaks its contract stops the engine, and the message names its class."""

import dataclasses

import numpy as np
import pytest

from interlock.core.batch import Draft, StepResult
from interlock.core.drafter import TokenDrafter
from interlock.core.errors import InterlockError
from interlock.core.request import RequestId
from interlock.core.scheduler import AdmissionPolicy, Division, Share
from interlock.core.verifier import Verdict
from interlock.plugins.executor import FixedConfig
from interlock.plugins.executor.fixed import FixedExecutor
from interlock.plugins.scheduler import DecodeFirstConfig
from interlock.plugins.scheduler.chunking import DecodeFirst
from interlock.plugins.scheduler.victim import LatestVictim
from interlock.plugins.speculative.verifiers.target_only import TargetOnly
from tests.engine.breaking import stopped


class OverBudget(DecodeFirst):
    def divide(self, decodes, prefills, budget_tokens):
        return super().divide(decodes, prefills, budget_tokens + 1)


class MoreThanPending(DecodeFirst):
    def divide(self, decodes, prefills, budget_tokens):
        more = [Share(view.id, view.pending + 1) for view in prefills[:1]]
        return Division(decodes.ids, more)


class OneTwice(DecodeFirst):
    def divide(self, decodes, prefills, budget_tokens):
        return Division(decodes.ids, [Share(view.id, 1) for view in prefills[:1]] * 2)


class DecodesTwice(DecodeFirst):
    def divide(self, decodes, prefills, budget_tokens):
        found = super().divide(decodes, prefills, budget_tokens)
        return found._replace(decodes=np.repeat(found.decodes, 2))


class Stranger(DecodeFirst):
    def divide(self, decodes, prefills, budget_tokens):
        return Division(decodes.ids, [Share(RequestId(77), 1)])


class StrangeDecode(DecodeFirst):
    def divide(self, decodes, prefills, budget_tokens):
        return Division(np.array([77]))


class Nothing(DecodeFirst):
    def divide(self, decodes, prefills, budget_tokens):
        return Division(decodes.ids[:0])


class SharesAlone(DecodeFirst):
    def divide(self, decodes, prefills, budget_tokens):
        return super().divide(decodes, prefills, budget_tokens).shares


class ViewsOfDecodes(DecodeFirst):
    def divide(self, decodes, prefills, budget_tokens):
        return super().divide(decodes, prefills, budget_tokens)._replace(decodes=list(decodes))


class DecodesAsTheyCame(DecodeFirst):
    def divide(self, decodes, prefills, budget_tokens):
        return super().divide(decodes, prefills, budget_tokens)._replace(decodes=decodes)


class HalvesOfTokens(DecodeFirst):
    def divide(self, decodes, prefills, budget_tokens):
        return Division(decodes.ids, [Share(view.id, view.pending / 2) for view in prefills[:1]])


class AnIterator(DecodeFirst):
    def divide(self, decodes, prefills, budget_tokens):
        found = super().divide(decodes, prefills, budget_tokens)
        return found._replace(shares=iter(found.shares))


CHUNKING = [
    OverBudget, MoreThanPending, OneTwice, DecodesTwice, Stranger, StrangeDecode, Nothing,
    SharesAlone, ViewsOfDecodes, DecodesAsTheyCame, HalvesOfTokens, AnIterator,
]  # fmt: skip


@pytest.mark.parametrize("broken", CHUNKING)
def test_a_chunking_policy_is_named(broken):
    assert broken.__name__ in stopped("chunking", lambda _context: broken(DecodeFirstConfig()))


class ChoosesAStranger(LatestVictim):
    def choose(self, candidates):
        return RequestId(77)


class ChoosesTheOldest(LatestVictim):
    def choose(self, candidates):
        return RequestId(0)


@pytest.mark.parametrize("broken", [ChoosesAStranger, ChoosesTheOldest])
def test_a_victim_policy_is_named(broken):
    message = stopped("victim", lambda _context: broken(), num_pages=8, index="none")
    assert broken.__name__ in message


class AdmitsNobody(AdmissionPolicy):
    def admit(self, view, load):
        return False


def test_an_admission_policy_is_named():
    assert "AdmitsNobody" in stopped("admission", lambda _context: AdmitsNobody())


class Sideways(TargetOnly):
    """Accepts the second candidate without the first."""

    def accept(self, drafts, rows):
        return [
            Verdict((1,), 5) if len(draft.tokens) > 1 else verdict
            for draft, verdict in zip(drafts, super().accept(drafts, rows), strict=True)
        ]


class BeyondTheDraft(TargetOnly):
    def accept(self, drafts, rows):
        return [
            Verdict(tuple(range(len(draft.tokens))), 99) if draft.tokens else verdict
            for draft, verdict in zip(drafts, super().accept(drafts, rows), strict=True)
        ]


@pytest.mark.parametrize("broken", [Sideways, BeyondTheDraft])
def test_a_verifier_is_named(model_of, broken):
    message = stopped("verifier", lambda _context: broken(), model_of(), spec="ngram")
    assert broken.__name__ in message


class WrongStep(FixedExecutor):
    def execute(self, plan):
        return dataclasses.replace(super().execute(plan), step_id=plan.step_id + 1)


class OneRowShort(FixedExecutor):
    def execute(self, plan):
        result = super().execute(plan)
        return dataclasses.replace(result, token_offsets=result.token_offsets[:-1])


class NoToken(FixedExecutor):
    def execute(self, plan):
        result = super().execute(plan)
        nothing = StepResult.of_rows(plan.step_id, [()] * plan.batch.num_rows)
        nothing.duration_s = result.duration_s
        return nothing


class OutsideTheVocabulary(FixedExecutor):
    def execute(self, plan):
        result = super().execute(plan)
        result.tokens[:] = 1 << 20
        return result


def made(broken):
    return lambda context: broken(FixedConfig(), context.model.vocab_size, frozenset())


@pytest.mark.parametrize("broken", [WrongStep, OneRowShort, NoToken, OutsideTheVocabulary])
def test_an_executor_is_named(broken):
    assert broken.__name__ in stopped("executor", made(broken))


@pytest.mark.parametrize(
    "wrong",
    [
        {"tokens": lambda result: result.tokens[:-1]},
        {"tokens": lambda result: np.append(result.tokens, 3)},
        {"tokens": lambda result: result.tokens.tolist()},
        {"tokens": lambda result: result.tokens + 0.5},
        {"token_offsets": lambda result: result.token_offsets + 1},
        {"token_offsets": lambda result: result.token_offsets.tolist()},
        {"token_offsets": lambda result: result.token_offsets - 2 * (result.token_offsets == 1)},
        {"kept_paths": lambda _result: {-1: (0,)}},
        {"errors": lambda _result: {99: "a row that is none"}},
        {"logprobs": lambda _result: {99: ()}},
        {"prompt_logprobs": lambda _result: {99: ()}},
        {"drafts": lambda _result: {99: Draft((1,))}},
    ],
)
def test_an_executor_whose_columns_do_not_fit_each_other_is_named(wrong):
    class Misfit(FixedExecutor):
        def execute(self, plan):
            result = super().execute(plan)
            return dataclasses.replace(result, **{k: of(result) for k, of in wrong.items()})

    assert "Misfit gave" in stopped("executor", made(Misfit))


@pytest.mark.parametrize("wrong", [None, -1.0, float("nan"), float("inf")])
def test_virtual_time_takes_finite_durations_only(wrong):
    class Timeless(FixedExecutor):
        def execute(self, plan):
            return dataclasses.replace(super().execute(plan), duration_s=wrong)

    with pytest.raises(InterlockError, match="finite step durations"):
        stopped("executor", made(Timeless))


class Drafts(TokenDrafter):
    """Proposes this draft, whatever the text."""

    num_drafts = 3

    def __init__(self, draft):
        self._draft = draft

    def propose(self, request, tokens, limit):
        return self._draft


@pytest.mark.parametrize(
    "draft",
    [
        Draft((2, 64, 3)),
        Draft((2, -1)),
        Draft((2, 3), (-1,)),
        Draft((2, 3), (1, -1)),
        Draft((2, 3), (-1, -2)),
    ],
)
def test_a_drafter_is_named(model_of, draft):
    message = stopped(
        "spec", lambda _context: Drafts(draft), model_of(), budget_tokens=32, attention="reference"
    )
    assert "Drafts" in message
