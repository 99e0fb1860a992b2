"""Every drafter with every verifier that the resolver lets it have: the law of plain decoding.

It is shown in three steps, each computed and not sampled. All drafts that can be drawn after a
prompt come from the drafter itself, its draws decided by the test, with the probability of each.
What the verifier makes of them has the target's law, over all of its numbers. And in the engine
the laws that a verifier is given are those of plain decoding along each candidate's path. What
drafts and what verifies is asked of the registry.
"""

from functools import cache

import numpy as np
import pytest
import torch

from interlock.core.batch import Draft
from interlock.core.capabilities import AcceptsAnyDraft, DraftsChains, Lossy, SamplesDrafts
from interlock.core.drafter import DraftContext, Drawn, TokenDrafter
from interlock.core.errors import ConfigError
from interlock.core.registry import load_registry
from interlock.core.request import SamplingParams
from interlock.core.testing.draft_cases import Case, law_error, paths_of
from interlock.core.testing.every_draft import every_draft
from interlock.core.testing.sampler_contract import reference_law, reference_logits
from interlock.core.testing.tiny import write_tiny_checkpoint
from interlock.core.testing.tiny_heads import write_tiny_heads
from interlock.core.testing.verifier_contract import LAW_ERROR
from interlock.plugins.models import model_families
from tests.engine.serving import asking, build, outputs, serve, solo
from tests.models.loading import load, whole_logits

VOCAB, EOS, MOST = 4, 1, 3
PROMPT = (2, 3, 0, 2, 3)
REGISTRY = load_registry()
DRAFTS = every_draft(REGISTRY, num_drafts=2, paths=((0,), (1,), (0, 0)))
VERIFIERS = REGISTRY.names("spec/verifier")
WISHES = {
    "temperature": 1.5, "top_p": 0.97, "repetition_penalty": 1.2, "presence_penalty": 0.4,
    "logit_bias": ((3, 0.5),), "min_tokens": 3,
}  # fmt: skip


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """A model of four tokens with a head of every kind."""
    folder, families = tmp_path_factory.mktemp("small") / "gqa", model_families()
    write_tiny_checkpoint(folder, "gqa", families, seed=3, vocab_size=VOCAB)
    write_tiny_heads(folder, families)
    return folder


@cache
def law_after(model, prompt, output, wishes):
    """What plain decoding draws the next token from: a whole pass, and plain Python."""
    raw = whole_logits(load_once(model), [*prompt, *output])[-1].tolist()
    edited = reference_logits(raw, wishes, prompt, output, {EOS})
    return np.array(reference_law(edited, wishes))


@cache
def load_once(model):
    return load(model, dtype=torch.float64)


def engines(model, draft):
    """An engine for each verifier that this way to draft may have; the others are refused."""
    settings = {"spec": DRAFTS[draft], "index": "radix", "budget_tokens": 24, "num_pages": 24}
    found = {"target_only": build(model, **settings)}
    offered = found["target_only"].resolution.capabilities
    allowed = {"typical"}
    if SamplesDrafts() in offered:
        allowed |= {"recursive"} | ({"ratio", "block"} if DraftsChains() in offered else set())
    for verifier in VERIFIERS:
        if verifier in allowed:
            found[verifier] = build(model, **settings, verifier=verifier)
        elif verifier not in found:
            with pytest.raises(ConfigError, match=f"spec/verifier={verifier}"):
                build(model, **settings, verifier=verifier)
    return found


class Decided(DraftContext):
    """Draws for one request what `choices` say, the least likely to be asked for last; the others
    get what they would. `options` are how many tokens could have come, `chance` is of all."""

    def __init__(self, context, request, choices):
        self._context, self._request, self._choices = context, request, choices
        self.decoder, self.options, self.chance = context.decoder, [], 1.0

    def attend(self, *args, **more):
        return self._context.attend(*args, **more)

    def draw(self, logits_RV, requests, positions, nth=0):
        drawn = self._context.draw(logits_RV, requests, positions, nth)
        tokens_R = drawn.tokens_R.clone()
        for row in [row for row, request in enumerate(requests) if request == self._request]:
            possible = drawn.laws_RV[row].nonzero().flatten().tolist()
            at = len(self.options)
            self.options.append(len(possible))
            tokens_R[row] = possible[self._choices[at] if at < len(self._choices) else 0]
            self.chance *= float(drawn.laws_RV[row, tokens_R[row]])
        return Drawn(tokens_R, drawn.laws_RV)

    def caught_up(self):
        pass


def all_drafts(propose, rows, context, request):
    """Every draft that a request may get, with its probability."""
    cases, choices = [], []
    while True:
        decided = Decided(context, request, choices)
        draft = propose(rows, decided)[request]
        cases.append(Case(draft, decided.chance))
        choices = [*choices, *[0] * (len(decided.options) - len(choices))]
        while choices and choices[-1] + 1 == decided.options[len(choices) - 1]:
            choices.pop()
        if not choices:
            return cases
        choices[-1] += 1


def drafts_after(engine, prompt):
    """(output so far, every draft that may follow it) of the first request that has one."""
    found = []
    host = engine.core.drafts.host
    drafter = host or engine.executor.drafter
    propose = drafter.propose

    def of_tokens(request, tokens, limit):
        draft = propose(request, tokens, limit)
        if draft.tokens and not found:
            found.append((tuple(tokens.tolist())[len(prompt) :], [Case(draft.first(6), 1.0)]))
        return draft

    def of_features(rows, context):
        drafts = propose(rows, context)
        wanting = [r for r, limit in enumerate(rows.limits) if limit > 1]
        if wanting and not found:
            anchor = int(rows.next_tokens_N[rows.row_offsets[wanting[0] + 1] - 1])
            found.append(((anchor,), all_drafts(propose, rows, context, wanting[0])))
        return drafts

    drafter.propose = of_tokens if isinstance(drafter, TokenDrafter) else of_features
    serve(engine, asking(0, prompt, 30, seed=1, ignore_eos=True, **WISHES))
    drafter.propose = propose
    return found[0]


@pytest.mark.parametrize("draft", DRAFTS)
def test_a_verifier_that_takes_its_drafts_gives_the_law_of_plain_decoding(small, draft):
    made = engines(small, draft)
    wishes = SamplingParams(max_tokens=30, ignore_eos=True, **WISHES)
    drawn = SamplesDrafts() in made["target_only"].resolution.capabilities
    output, cases = drafts_after(made["target_only"], PROMPT)
    assert sum(case.chance for case in cases) == pytest.approx(1, abs=LAW_ERROR)
    assert (len(cases) > 1) == drawn

    class Target(dict):
        def __missing__(self, path):
            return law_after(small, PROMPT, (*output, *path), wishes)

    for verifier, engine in made.items():
        rule = engine.executor._verifier
        error = law_error(rule, cases, Target(), length=min(MOST, 1 + deepest(cases)))
        if Lossy() in engine.resolution.capabilities:
            assert AcceptsAnyDraft() not in engine.resolution.capabilities
        else:
            assert error <= LAW_ERROR, (verifier, error)


def deepest(cases):
    return max(max(case.draft.depths()) for case in cases)


@pytest.mark.parametrize("draft", DRAFTS)
def test_a_verifier_is_given_the_laws_of_plain_decoding_along_every_path(small, draft):
    """Of requests of all kinds in one step; and greedy ones get the tokens they get alone."""
    wanted = [
        asking(0, PROMPT, 9, ignore_eos=True),
        asking(1, PROMPT[:3], 9, seed=1, **WISHES),
        asking(2, (*PROMPT, 2, 0), 9, seed=2, temperature=1.3, top_k=3, ignore_eos=True),
        asking(3, (3, 0), 9, repetition_penalty=1.5, ignore_eos=True),
        asking(4, PROMPT, 9, seed=4, temperature=1e-6, ignore_eos=True),
    ]
    greedy = solo(small, [wanted[0], wanted[3]])
    greedy[4] = greedy[0]  # as good as greedy
    for engine in engines(small, draft).values():
        seen = watched(small, engine, wanted)
        records = serve(engine, *wanted)
        assert {index: outputs(records)[index] for index in greedy} == greedy
        assert seen["drafted"] > 8
        assert seen["together"] > 2


def watched(model, engine, wanted):
    """Compares what the engine's verifier is given; counts candidates and the most requests."""
    seen = {"drafted": 0, "together": 0}
    rule, execute = engine.executor._verifier, engine.executor.execute
    accept = rule.accept

    def executing(plan):
        def accepting(drafts, rows):
            batch, laws = plan.batch, rows.laws().numpy()
            lives = [engine.core._live[id] for id in batch.request_ids]
            asked = [live for live, count in zip(lives, batch.logit_counts, strict=True) if count]
            first = 0
            for live, draft in zip(asked, drafts, strict=True):
                request = wanted[live.request.index]
                output = tuple(live.record.output_token_ids)
                for row, path in enumerate(paths_of(draft)):
                    right = law_after(
                        model, request.prompt_token_ids, (*output, *path), request.sampling
                    )
                    assert laws[first + row] == pytest.approx(right, abs=1e-12)
                first += 1 + len(draft.tokens)
                seen["drafted"] += len(draft.tokens)
            assert first == len(laws)
            seen["together"] = max(seen["together"], len(drafts))
            return accept(drafts, rows)

        rule.accept = accepting
        return execute(plan)

    engine.executor.execute = executing
    return seen


def test_the_draws_of_a_draft_are_told_apart_by_the_law_that_comes_with_it():
    """A draft that came with another law than the one it was drawn from would not go unnoticed."""
    law = np.array([0.5, 0.3, 0.2, 0.0])
    other = torch.tensor([[0.2, 0.3, 0.5, 0.0]], dtype=torch.float64)
    cases = [Case(Draft((token,), laws=other), float(law[token])) for token in range(3)]
    target = {(): np.array([0.25, 0.5, 0.25, 0.0])}
    from interlock.plugins.speculative.verifiers.ratio import Ratio

    assert law_error(Ratio(), cases, _Same(target), length=1) > 0.01


class _Same(dict):
    def __missing__(self, _path):
        return self[()]
