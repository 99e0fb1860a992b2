"""A component that breaks its contract stops the engine, and the message names its class."""

import numpy as np
import pytest

from interlock.core.batch import Draft, RowResult, StepResult
from interlock.core.capabilities import (
    DrivesVirtualTime,
    KeepsPages,
    SharesPages,
    none_provided,
)
from interlock.core.drafter import TokenDrafter
from interlock.core.errors import ContractError
from interlock.core.prefix_index import Inserted
from interlock.core.request import RequestId
from interlock.core.scheduler import AdmissionPolicy, Share
from interlock.core.verifier import Verdict
from interlock.plugins.cache.lru import LRUEviction
from interlock.plugins.cache.paged import PagedAllocator
from interlock.plugins.cache.radix import RadixIndex
from interlock.plugins.executor import FixedConfig
from interlock.plugins.executor.fixed import FixedExecutor
from interlock.plugins.scheduler import DecodeFirstConfig, LatestConfig
from interlock.plugins.scheduler.chunking import DecodeFirst
from interlock.plugins.scheduler.victim import LatestVictim
from interlock.plugins.speculative.target_only import TargetOnly
from tests.engine.serving import Client, asking, build, registry_with, tokens

PROVIDED = {
    "allocator": lambda _config, _model: (SharesPages(),),
    "index": lambda _config, _model: (KeepsPages(),),
    "executor": lambda _config, _model: (DrivesVirtualTime(),),
}


def stopped(seam, make, model=None, **settings):
    """The message with which a busy engine with this component stops."""
    registry = registry_with(seam, make, provides=PROVIDED.get(seam, none_provided))
    settings = {"num_pages": 12, "budget_tokens": 12, seam: "ours", **settings}
    client = Client(build(model, registry, **settings))
    shared = tokens(9, salt=1)
    client.submit(*(asking(i, (*shared, i + 2), 12) for i in range(4)))
    client.submit(*(asking(4 + i, (*shared, i + 2), 12, arrival_s=9.0) for i in range(4)))
    with pytest.raises(ContractError) as caught:
        client.finish()
    return str(caught.value)


class GivesOnePageTwice(PagedAllocator):
    def take(self, owner, count):
        pages = super().take(owner, count)
        if pages is not None and len(pages) > 1:
            pages[-1] = pages[0]
        return pages


class GivesAHeldPage(PagedAllocator):
    first = None

    def take(self, owner, count):
        pages = super().take(owner, count)
        if pages is not None:
            self.first = pages[0] if self.first is None else self.first
            pages[-1] = self.first
        return pages


class GivesTooFew(PagedAllocator):
    def take(self, owner, count):
        pages = super().take(owner, count)
        return None if pages is None else pages[:-1]


class GivesAPageBeyondThePool(PagedAllocator):
    page = 12

    def take(self, owner, count):
        pages = super().take(owner, count)
        if pages is not None:
            pages[-1] = self.page
        return pages


class GivesANegativePage(GivesAPageBeyondThePool):
    page = -1


class LosesAPage(PagedAllocator):
    def give_back(self, pages):
        super().give_back(pages[:-1])


class NeverHasAny(PagedAllocator):
    def take(self, owner, count):
        return None


@pytest.mark.parametrize(
    "broken",
    [
        GivesOnePageTwice,
        GivesAHeldPage,
        GivesTooFew,
        GivesAPageBeyondThePool,
        GivesANegativePage,
        LosesAPage,
        NeverHasAny,
    ],
)
def test_an_allocator_is_named(broken):
    message = stopped("allocator", lambda context: broken(context.num_pages))
    assert broken.__name__ in message


class MatchesTooMuch(RadixIndex):
    def match(self, key):
        found = super().match(key)
        return np.concatenate([found, found, found, found]) if len(found) else found


class MatchesFreePages(RadixIndex):
    def match(self, key):
        return np.array([11], dtype=np.int32)


class MatchesOnePageTwice(RadixIndex):
    def match(self, key):
        found = super().match(key)
        return found[[0, 0]] if len(found) > 1 else found


class LosesRuns(RadixIndex):
    def run_of(self, page):
        return None


class InsertsOtherPages(RadixIndex):
    def insert(self, key, after, pages):
        inserted = super().insert(key, after, pages)
        return Inserted(inserted.pages[::-1].copy(), inserted.kept)


class InsertsMoreThanGiven(RadixIndex):
    def insert(self, key, after, pages):
        inserted = super().insert(key, after, pages)
        return Inserted(inserted.pages, inserted.kept + 1)


class DropsNothing(RadixIndex):
    def drop_tail(self, run, count):
        return super().drop_tail(run, count)[:0]


@pytest.mark.parametrize(
    "broken",
    [
        MatchesTooMuch,
        MatchesFreePages,
        MatchesOnePageTwice,
        LosesRuns,
        InsertsOtherPages,
        InsertsMoreThanGiven,
        DropsNothing,
    ],
)
def test_an_index_is_named(broken):
    assert broken.__name__ in stopped("index", lambda context: broken(context.num_pages))


class ChoosesAnyRun(LRUEviction):
    def __init__(self):
        super().__init__()
        self.all = []

    def used(self, run):
        self.all.append(run)

    def choose(self):
        return self.all[0] if self.all else super().choose()


class ChoosesNobody(LRUEviction):
    def choose(self):
        return None


@pytest.mark.parametrize("broken", [ChoosesAnyRun, ChoosesNobody])
def test_an_eviction_policy_is_named(broken):
    message = stopped("eviction", lambda _context: broken(), index="radix", num_pages=8)
    assert broken.__name__ in message


class OverBudget(DecodeFirst):
    def divide(self, decodes, prefills, budget_tokens):
        return super().divide(decodes, prefills, budget_tokens + 1)


class MoreThanPending(DecodeFirst):
    def divide(self, decodes, prefills, budget_tokens):
        return [Share(view.id, view.pending + 1) for view in [*decodes, *prefills][:1]]


class OneTwice(DecodeFirst):
    def divide(self, decodes, prefills, budget_tokens):
        return [Share(view.id, 1) for view in [*decodes, *prefills][:1]] * 2


class Stranger(DecodeFirst):
    def divide(self, decodes, prefills, budget_tokens):
        return [Share(RequestId(77), 1)]


class Nothing(DecodeFirst):
    def divide(self, decodes, prefills, budget_tokens):
        return []


@pytest.mark.parametrize("broken", [OverBudget, MoreThanPending, OneTwice, Stranger, Nothing])
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
    assert LatestConfig().name == "latest"


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
        result = super().execute(plan)
        return StepResult(plan.step_id + 1, result.rows, result.duration_s)


class OneRowShort(FixedExecutor):
    def execute(self, plan):
        result = super().execute(plan)
        return StepResult(plan.step_id, result.rows[:-1], result.duration_s)


class NoToken(FixedExecutor):
    def execute(self, plan):
        result = super().execute(plan)
        return StepResult(plan.step_id, [RowResult() for _ in result.rows], result.duration_s)


class OutsideTheVocabulary(FixedExecutor):
    def execute(self, plan):
        result = super().execute(plan)
        for row in result.rows:
            row.tokens = tuple(1 << 20 for _ in row.tokens)
        return result


@pytest.mark.parametrize("broken", [WrongStep, OneRowShort, NoToken, OutsideTheVocabulary])
def test_an_executor_is_named(broken):
    def make(context):
        return broken(FixedConfig(), context.model.vocab_size, frozenset())

    assert broken.__name__ in stopped("executor", make)


class Drafts(TokenDrafter):
    """Proposes this draft, whatever the text."""

    num_drafts = 3

    def __init__(self, draft):
        self._draft = draft

    def propose(self, tokens, limit):
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
