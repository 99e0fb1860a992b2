"""Verifiers inside the engine: laws at scale, and what a run of accepted tokens may not disturb."""

from functools import cache

import pytest
import torch

from interlock.core.registry import load_registry
from interlock.core.request import SamplingParams
from interlock.core.testing.chi_square import assert_follows
from interlock.core.testing.sampled_drafter import SampledConfig, sampled_component
from interlock.core.testing.sampler_contract import reference_law, reference_logits
from interlock.core.testing.tiny import write_tiny_checkpoint
from tests.engine.serving import (
    asking,
    build,
    outputs,
    plus,
)
from tests.models.loading import load, whole_logits

VOCAB, EOS = 4, 1
PROMPT = (2, 3, 0, 2, 3)
REGISTRY = plus(sampled_component("sampled"))
CHAIN, TREE = SampledConfig(), SampledConfig(tree=True)
DRAWN = [("ratio", CHAIN), ("block", CHAIN), ("recursive", CHAIN), ("recursive", TREE)]
SAMPLINGS = {
    "plain": {"temperature": 1.0},
    "filters": {"temperature": 1.6, "top_k": 3, "top_p": 0.9},
    "penalties": {
        "temperature": 1.2, "min_p": 0.05, "repetition_penalty": 1.2, "presence_penalty": 0.4,
        "frequency_penalty": 0.3, "logit_bias": ((2, 0.5),),
    },
    "masks": {"temperature": 1.3, "min_tokens": 3, "banned_token_ids": (3,)},
}  # fmt: skip


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """A model of four tokens."""
    families = list(load_registry().families.values())
    folder = tmp_path_factory.mktemp("small")
    return write_tiny_checkpoint(folder, "gqa", families, seed=3, vocab_size=VOCAB)


@cache
def raw_logits(model, text):
    return tuple(whole_logits(decoder_of(model), list(text))[-1].tolist())


@cache
def decoder_of(model):
    return load(model, dtype=torch.float64)


def output_law(model, params):
    """The probability of every output, from whole sequences and plain Python."""
    law, open_ = {}, [((), 1.0)]
    while open_:
        output, chance = open_.pop()
        if output[-1:] == (EOS,) or len(output) == params.max_tokens:
            law[output] = chance
            continue
        raw = raw_logits(model, (*PROMPT, *output))
        edited = reference_logits(raw, params, PROMPT, output, {EOS})
        for token, p in enumerate(reference_law(edited, params)):
            if p > 0:
                open_.append(((*output, token), chance * p))
    return law


def assert_outputs_follow(found, law):
    """Chi-square; outputs of which fewer than ten are expected are one cell."""
    total = len(found)
    assert set(found) <= set(law)
    common = [output for output, p in law.items() if p * total >= 10]
    counts = [found.count(output) for output in common]
    chances = [law[output] for output in common]
    rest = 1 - sum(chances)
    if rest * total < 10:
        smallest = min(range(len(chances)), key=chances.__getitem__)
        chances[smallest] += rest
        counts[smallest] += total - sum(counts)
    else:
        chances.append(rest)
        counts.append(total - sum(counts))
    assert_follows(counts, chances)


def sampled_outputs(model, registry, spec, verifier, sampling, count, num_pages=400):
    engine = build(
        model, registry, spec=spec, verifier=verifier, num_pages=num_pages, budget_tokens=2000,
        max_requests=64, index="radix",
    )  # fmt: skip
    wanted = [asking(i, PROMPT, 5, seed=i, **sampling) for i in range(count)]
    found = [tuple(tokens) for tokens in outputs(serve_many(engine, wanted)).values()]
    return found, engine


def serve_many(engine, wanted):
    """Records by index; the accounts are checked at the end alone."""
    for request in wanted:
        engine.submit(request)
    records = {o.index: o.finished for o in engine.outputs() if o.finished}
    engine.core.ledger.check()
    return records


@pytest.mark.parametrize(
    ("sampling", "verifier", "spec"),
    [
        *(("plain", *one) for one in DRAWN),
        *(("filters", *one) for one in (DRAWN[0], DRAWN[3])),
        *(("penalties", *one) for one in (DRAWN[1], DRAWN[3])),
        *(("masks", *one) for one in (DRAWN[0], DRAWN[1])),
    ],
    ids=lambda value: getattr(value, "name", value),
)
def test_outputs_follow_the_law_of_plain_decoding(small, sampling, verifier, spec):
    asked = SAMPLINGS[sampling]
    found, engine = sampled_outputs(small, REGISTRY, spec, verifier, asked, 1200)
    assert 0.2 < engine.core.ledger.accepted / engine.core.ledger.drafted < 0.95
    assert_outputs_follow(found, output_law(small, SamplingParams(max_tokens=5, **asked)))
