"""A request whose numbers turn into NaN fails alone, and leaves no NaN behind in the pages."""

import shutil

import pytest
from safetensors.torch import load_file, save_file

from interlock.core.batch import Draft
from interlock.core.drafter import TokenDrafter
from interlock.core.request import Status
from interlock.core.testing.replay_drafter import Continuations, ReplayConfig, replay_component
from interlock.plugins.speculative.heads.options import EagleConfig
from tests.engine.serving import (
    asking,
    build,
    outputs,
    plus,
    registry_with,
    serve,
    solo,
    tokens,
)

POISON = 63


@pytest.fixture(scope="module")
def poisoned_of(model_of, tmp_path_factory):
    """Models whose embedding of token 63 is NaN."""
    written = {}

    def model(kind):
        if kind not in written:
            folder = tmp_path_factory.mktemp("poisoned") / kind
            written[kind] = shutil.copytree(model_of(kind), folder)
            weights = load_file(folder / "model.safetensors")
            weights["model.embed_tokens.weight"][POISON] = float("nan")
            save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
        return written[kind]

    return model


@pytest.mark.parametrize(
    ("kind", "attention"),
    [(k, a) for k, b in [("gqa", "gqa"), ("mla_moe", "mla"), ("hybrid", "gqa")]
     for a in ("reference", b)],
)  # fmt: skip
@pytest.mark.parametrize("index", ["none", "radix"])
@pytest.mark.parametrize("spec", ["none", "eagle", "replay"])
def test_a_request_with_nan_fails_alone_and_its_pages_are_harmless(
    poisoned_of, kind, attention, index, spec
):
    model = poisoned_of(kind)
    good = [
        asking(0, 9, 6, temperature=1.0, top_p=0.9),
        asking(1, 6, 6),
        asking(4, 11, 6, temperature=0.5),
        asking(5, 7, 9, ignore_eos=True),
    ]
    bad = [
        asking(2, (*tokens(5, salt=2), POISON, 7, 8), 6, temperature=1.0),
        asking(3, (POISON, *tokens(13, salt=3)), 6),
    ]
    right = solo(model, good)
    registry = None
    options = {"none": "none", "eagle": EagleConfig(num_drafts=3)}
    if spec == "replay":
        known = [(*r.prompt_token_ids, *right[r.index]) for r in good]
        registry = plus(replay_component("replay", Continuations(known)))
        options["replay"] = ReplayConfig("replay", 3)
    engine = build(
        model, registry, attention=attention, index=index, num_pages=12, budget_tokens=12,
        spec=options[spec],
    )  # fmt: skip
    records = serve(engine, *good[:2], *bad, *good[2:])
    again = serve(engine, *(asking(10 + r.index, r.prompt_token_ids, 4) for r in good[2:]))
    for request in bad:
        record = records.pop(request.index)
        assert record.status is Status.FAILED
        assert "logits" in str(record.error)
        assert record.output_token_ids == []
    assert outputs(records) == right
    repeated = [asking(10 + r.index, r.prompt_token_ids, 4) for r in good[2:]]
    assert outputs(again) == solo(model, repeated)


class Poisoner(TokenDrafter):
    """Proposes a token whose row is NaN, in front of or behind another."""

    def __init__(self, chain):
        self.num_drafts = len(chain)
        self._chain = chain

    def propose(self, request, tokens, limit):
        return Draft(self._chain[:limit])


@pytest.mark.parametrize("attention", ["reference", "gqa"])
@pytest.mark.parametrize("chain", [(POISON,), (2, POISON), (POISON, 2)])
def test_a_rejected_candidate_with_nan_costs_a_step_and_no_request(poisoned_of, attention, chain):
    model = poisoned_of("gqa")
    request = asking(0, 9, 8, temperature=1.0, ignore_eos=True)
    right = solo(model, [request])
    assert POISON not in right[0]
    engine = build(
        model,
        registry_with("spec", lambda _context: Poisoner(chain)),
        spec="ours",
        attention=attention,
        index="radix",
    )
    assert outputs(serve(engine, request)) == right
    assert engine.core.ledger.steps <= 2 * 8


@pytest.mark.parametrize("spec", ["none", "replay"])
def test_a_drawn_token_with_nan_ends_the_request_after_it(poisoned_of, spec):
    """The same tokens with and without drafts, in which the token was accepted."""
    model = poisoned_of("gqa")
    fatal = next(
        record
        for seed in range(60)
        for record in [_drawing(model, seed)]
        if POISON in record.output_token_ids and len(record.output_token_ids) > 2
    )
    assert fatal.status is Status.FAILED
    assert fatal.output_token_ids[-1] == POISON
    known = [(*tokens(5), *fatal.output_token_ids, 2, 3, 4)]
    registry = plus(replay_component("replay", Continuations(known)))
    chosen = ReplayConfig("replay", 4, wrong_percent=0) if spec == "replay" else "none"
    engine = build(model, registry, spec=chosen)
    assert fatal.seed is not None
    record = serve(engine, _hot(fatal.seed))[0]
    assert record.status is Status.FAILED
    assert record.output_token_ids == fatal.output_token_ids


def _hot(seed):
    return asking(0, tokens(5), 24, temperature=3.0, seed=seed, ignore_eos=True)


def _drawing(model, seed):
    return serve(build(model), _hot(seed))[0]
