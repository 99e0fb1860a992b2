"""Accepted runs in the engine: greedy identity, stops, logprobs, seeds, hostile drafts."""

import json

import numpy as np
import pytest
import torch

from interlock.core.batch import NO_DRAFT, Draft
from interlock.core.capabilities import DraftsChains, SamplesDrafts
from interlock.core.drafter import TokenDrafter
from interlock.core.registry import load_registry
from interlock.core.request import FinishReason, SamplingParams
from interlock.core.testing.sampled_drafter import SampledConfig, sampled_component
from interlock.core.testing.tiny import VOCAB_SIZE, write_tiny_checkpoint
from tests.engine.serving import asking, build, outputs, plus, registry_with, serve, solo
from tests.engine.test_verifiers import (
    DRAWN,
    VOCAB,
    assert_outputs_follow,
    decoder_of,
    output_law,
    sampled_outputs,
)
from tests.engine.test_verifiers import small as small  # a fixture
from tests.models.loading import whole_logits

REGISTRY = plus(sampled_component("sampled"))
NEAR = SampledConfig(noise=0.0)
NEAR_TREE = SampledConfig(noise=0.0, tree=True)
EVERY = [
    *(("target_only", NEAR), ("ratio", NEAR), ("block", NEAR), ("recursive", NEAR)),
    *(("typical", NEAR), ("target_only", NEAR_TREE), ("recursive", NEAR_TREE)),
    ("typical", NEAR_TREE),
]


@pytest.mark.parametrize(("verifier", "spec"), EVERY)
def test_greedy_requests_give_the_tokens_of_plain_decoding_beside_sampled_ones(
    model_of, verifier, spec
):
    requests = [
        asking(i, 4 + 3 * i, 14, temperature=(0.0, 0.9)[i % 3 == 2], repetition_penalty=1.2)
        for i in range(7)
    ]
    greedy = [request for request in requests if not request.sampling.temperature]
    engine = build(model_of(), REGISTRY, spec=spec, verifier=verifier, num_pages=22)
    found = outputs(serve(engine, *requests))
    assert {request.index: found[request.index] for request in greedy} == solo(model_of(), greedy)
    assert engine.core.queues.counters.preemptions
    assert engine.core.ledger.accepted


@pytest.mark.parametrize(("verifier", "spec"), DRAWN[:2] + DRAWN[3:])
def test_a_stop_inside_a_run_ends_the_output_there_whoever_else_is_served(model_of, verifier, spec):
    def engine_of():
        spec_near = SampledConfig(noise=0.0, tree=spec.tree)
        return build(model_of(), REGISTRY, spec=spec_near, verifier=verifier, budget_tokens=200)

    wanted = [asking(i, 6, 14, seed=i, temperature=0.4, ignore_eos=True) for i in range(6)]
    free = outputs(serve(engine_of(), *wanted))
    runs = []
    for place in (2, 5, 9):
        engine = engine_of()
        execute = engine.executor.execute

        def watching(plan, execute=execute):
            result = execute(plan)
            runs.extend(result.tokens_of(r) for r in range(plan.batch.num_rows))
            return result

        engine.executor.execute = watching
        stops = {i: free[i][place] for i in free}
        asked = [
            asking(i, 6, 14, seed=i, temperature=0.4, ignore_eos=True, stop_token_ids=(stops[i],))
            for i in free
        ]
        records = serve(engine, *asked)
        for i, record in records.items():
            assert record.output_token_ids == free[i][: free[i].index(stops[i]) + 1]
            assert record.finish_reason is FinishReason.STOP
            assert record.accepted_tokens < len(record.output_token_ids)
    assert max(map(len, runs)) > 1


@pytest.mark.parametrize(("verifier", "spec"), DRAWN)
def test_a_seed_alone_decides_the_output(model_of, verifier, spec):
    wanted = [asking(i, 5 + i, 10, seed=i, temperature=0.9, n=1 + i % 2) for i in range(5)]

    def served(*requests):
        engine = build(model_of(), REGISTRY, spec=spec, verifier=verifier, budget_tokens=400)
        return outputs(serve(engine, *requests))

    together = served(*wanted)
    assert together == served(*wanted)
    assert together == {key: out for one in wanted for key, out in served(one).items()}
    again = [asking(i, 5 + i, 10, seed=i + 50, temperature=0.9, n=1 + i % 2) for i in range(5)]
    assert served(*again) != together


@pytest.mark.parametrize(("verifier", "spec"), [*DRAWN, ("typical", NEAR_TREE)])
def test_logprobs_are_those_of_the_tokens_that_came(model_of, verifier, spec):
    request = asking(0, 9, 14, seed=4, temperature=0.5, logprobs=2, ignore_eos=True)
    engine = build(model_of(), REGISTRY, spec=spec, verifier=verifier)
    (record,) = serve(engine, request).values()
    assert record.accepted_tokens
    text = [*request.prompt_token_ids, *record.output_token_ids]
    raw = whole_logits(decoder_of(model_of()), text).log_softmax(-1)[8:-1]
    for row, token, found in zip(raw, record.output_token_ids, record.logprobs, strict=True):
        assert found.chosen == pytest.approx(row[token].item(), abs=1e-9)
        assert [t for t, _ in found.top] == row.topk(2).indices.tolist()


class Adversary(TokenDrafter):
    """Drafts by length so far: none, an end, what is forbidden, anything, or what it chose."""

    num_drafts = 3

    def __init__(self, vocab):
        self._vocab = vocab
        self._generator = np.random.default_rng(8)

    def propose(self, request, tokens, limit):
        kind = len(tokens) % 5
        limit = min(limit, self.num_drafts)
        if kind == 0:
            return NO_DRAFT
        if kind == 1:
            return Draft((0,) * limit)
        law = np.full(self._vocab, 1 / self._vocab)
        if kind == 2:
            law, limit = np.array([0.05, 0.9] + [0.05 / (self._vocab - 2)] * (self._vocab - 2)), 1
        elif kind == 3:
            law = np.eye(self._vocab)[3]
        drawn = self._generator.choice(self._vocab, size=limit, p=law)
        return Draft(tuple(drawn.tolist()), laws=torch.from_numpy(np.stack([law] * limit)))


def hostile(make):
    return registry_with(
        "spec", make, provides=lambda config, model: (SamplesDrafts(), DraftsChains())
    )


@pytest.mark.parametrize("verifier", ["ratio", "block", "recursive"])
def test_hostile_drafts_leave_the_law(small, verifier):
    asked = {"temperature": 1.3, "min_tokens": 1, "banned_token_ids": (3,)}
    registry = hostile(lambda context: Adversary(VOCAB))
    found, engine = sampled_outputs(small, registry, "ours", verifier, asked, 1000, num_pages=40)
    assert engine.core.ledger.accepted
    assert engine.core.queues.counters.preemptions
    assert_outputs_follow(found, output_law(small, SamplingParams(max_tokens=5, **asked)))


class Letters(TokenDrafter):
    """Draws letters, of which the grammar forbids one."""

    num_drafts = 3

    def __init__(self, letters):
        self._letters = letters
        self._generator = np.random.default_rng(9)

    def propose(self, request, tokens, limit):
        law = np.zeros(257)
        law[self._letters] = 0.4, 0.35, 0.25
        drawn = self._generator.choice(257, size=min(limit, 3), p=law)
        return Draft(tuple(drawn.tolist()), laws=torch.from_numpy(np.stack([law] * len(drawn))))


@pytest.mark.parametrize("verifier", ["ratio", "block", "recursive"])
def test_candidates_that_a_grammar_forbids_stay_in_and_are_refused(tmp_path, verifier):
    families = list(load_registry().families.values())
    model = write_tiny_checkpoint(tmp_path / "bytes", "gqa", families, tokenizer=True)
    known = json.loads((model / "tokenizer.json").read_text())["model"]["vocab"]
    a, b, c = (known[letter] for letter in "abc")
    registry = hostile(lambda context: Letters([a, b, c]))
    engine = build(
        model, registry, spec="ours", verifier=verifier, structured="xgrammar", num_pages=200,
        max_requests=32, budget_tokens=800,
    )  # fmt: skip
    for i in range(600):
        engine.submit(asking(i, (5, 6, 7), 8, seed=i, temperature=1.0, regex="[ab]{3}"))
    found = [tuple(o.finished.output_token_ids) for o in engine.outputs() if o.finished]
    law = {(): 1.0}
    for _ in range(3):
        grown = {}
        for output, chance in law.items():
            raw = whole_logits(decoder_of(model), [5, 6, 7, *output])[-1]
            for token, p in zip((a, b), raw[[a, b]].softmax(-1).tolist(), strict=True):
                grown[(*output, token)] = chance * p
        law = grown
    assert engine.core.ledger.accepted < engine.core.ledger.drafted
    assert_outputs_follow(found, {(*output, 256): chance for output, chance in law.items()})


def test_outputs_of_typical_acceptance_are_tokens_of_the_model(model_of):
    requests = [asking(i, 5, 12, seed=i, temperature=0.8, top_k=5) for i in range(4)]
    for spec in (NEAR, NEAR_TREE):
        engine = build(model_of(), REGISTRY, spec=spec, verifier="typical")
        found = outputs(serve(engine, *requests))
        assert all(0 <= token < VOCAB_SIZE for output in found.values() for token in output)
        assert engine.core.ledger.accepted
