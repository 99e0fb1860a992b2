"""Drafters that are wrong on purpose: they change no token, and cost nothing but their own time.

Each knows what comes next and avoids it, or drafts what can never come.
"""

import numpy as np
import pytest
import torch

from interlock.core.batch import NO_DRAFT, Draft
from interlock.core.capabilities import DraftsChains, SamplesDrafts
from interlock.core.drafter import TokenDrafter
from interlock.core.testing.replay_drafter import Continuations
from interlock.core.testing.tiny import VOCAB_SIZE
from tests.engine.serving import asking, build, outputs, registry_with, serve, solo, tokens

EOS, LENGTH = 1, 14
SHAPES = {"chain": None, "tree": (-1, -1, 0, 0, 1)}


class Wrong(TokenDrafter):
    """None of its candidates comes next, nor stands where it would be right."""

    num_drafts = 5

    def __init__(self, known, tokens_after, parents=None):
        self._known, self._after, self._parents = known, tokens_after, parents
        self.proposed = 0

    def propose(self, request, tokens, limit):
        right = self._known.after(tokens.tolist(), self.num_drafts)
        draft = Draft(tuple(self._after(len(tokens), right)), self._parents).first(limit)
        laws = np.eye(VOCAB_SIZE)[list(draft.tokens)]
        self.proposed += len(draft.tokens)
        return Draft(draft.tokens, draft.parents, torch.from_numpy(laws)) if laws.size else draft


def always_wrong(length, right):
    """Other tokens than any that comes soon."""
    return [next(t for t in range(length + i, 99) if t not in right) % 64 for i in range(5)]


KINDS = {
    "other tokens": always_wrong,
    "ends": lambda length, right: [EOS] * 5,
    "forbidden": lambda length, right: [9] * 5,
    "sometimes none": lambda length, right: always_wrong(length, right)[: length % 3 * 2],
}


def wishes(index):
    more = {"temperature": (0.0, 0.8)[index % 2], "banned_token_ids": (9,), "seed": index}
    return more | ({"ignore_eos": True, "banned_token_ids": (EOS, 9)} if index < 3 else {})


def requests():
    return [asking(i, tokens(3 + 5 * i, i), LENGTH, **wishes(i)) for i in range(5)]


@pytest.fixture(scope="module")
def right(model_of):
    return solo(model_of(), requests())


def run(model, spec, registry=None, **settings):
    """Records, and how many steps and preemptions there were."""
    engine = build(model, registry, spec=spec, **settings)
    records = serve(engine, *requests())
    return records, engine.core.ledger, engine.core.queues.counters.preemptions


@pytest.mark.parametrize("num_pages", [64, 16])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("kind", KINDS)
def test_wrong_drafts_take_no_step_no_page_and_no_token_from_anyone(
    model_of, right, kind, shape, num_pages
):
    known = Continuations([(*r.prompt_token_ids, *right[r.index]) for r in requests()])
    wrong = Wrong(known, KINDS[kind], SHAPES[shape])
    if kind == "sometimes none" and shape == "tree":
        wrong = Wrong(known, lambda length, right: always_wrong(length, right), SHAPES[shape])
    registry = registry_with("spec", lambda _context: wrong)
    settings = {"num_pages": num_pages, "budget_tokens": 512}
    plain, ledger, preempted = run(model_of(), "none", **settings)
    records, drafted, preempted_too = run(model_of(), "ours", registry, **settings)
    assert outputs(records) == right == outputs(plain)
    assert wrong.proposed > 20
    assert drafted.accepted == 0
    assert (drafted.steps, preempted_too) == (ledger.steps, preempted)
    assert (preempted > 0) == (num_pages == 16)
    for index, record in records.items():
        assert record.target_passes == plain[index].target_passes
        assert record.recomputed_tokens == plain[index].recomputed_tokens


@pytest.mark.parametrize("verifier", ["ratio", "block", "recursive"])
def test_wrong_drafts_cost_greedy_requests_no_pass_under_rules_that_draw(model_of, right, verifier):
    known = Continuations([(*r.prompt_token_ids, *right[r.index]) for r in requests()])
    registry = registry_with(
        "spec", lambda _context: Wrong(known, always_wrong),
        provides=lambda config, model: (SamplesDrafts(), DraftsChains()),
    )  # fmt: skip
    plain, _, _ = run(model_of(), "none")
    records, _, _ = run(model_of(), "ours", registry, verifier=verifier)
    for index in (0, 2, 4):
        assert records[index].output_token_ids == right[index]
        assert records[index].target_passes == plain[index].target_passes
        assert records[index].accepted_tokens == 0


class Patchy(TokenDrafter):
    """Right drafts of any length, none now and then: each request of a step has another one."""

    num_drafts = 6

    def __init__(self, known):
        self._known = known

    def propose(self, request, tokens, limit):
        count = min(limit, (int(request) + len(tokens)) % 7)
        return Draft(self._known.after(tokens.tolist(), count)) if count else NO_DRAFT


@pytest.mark.parametrize("page_size", [1, 2, 16])
def test_drafts_of_every_length_in_one_step_are_accepted_whole(model_of, right, page_size):
    known = Continuations([(*r.prompt_token_ids, *right[r.index]) for r in requests()])
    registry = registry_with("spec", lambda _context: Patchy(known))
    records, ledger, _ = run(
        model_of(), "ours", registry, page_size=page_size, num_pages=200, budget_tokens=512
    )
    assert outputs(records) == right
    assert ledger.accepted == ledger.drafted > 20
