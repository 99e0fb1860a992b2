"""A vocabulary of 50 whose head has 64 rows: true logits negative, the padding's zero."""

import dataclasses

import pytest
import torch
from safetensors.torch import load_file, save_file

from interlock.core.registry import load_registry
from interlock.core.testing.replay_drafter import Continuations, ReplayConfig, replay_component
from interlock.core.testing.tiny import write_tiny_checkpoint
from tests.engine.serving import asking, build, plus, serve
from tests.parallel.threads import with_threads

SIZE = 50


@pytest.fixture(scope="module")
def padded(tmp_path_factory):
    """Feature 0 is the same positive number everywhere, and the head turns it negative."""
    folder = tmp_path_factory.mktemp("padded") / "gqa"
    families = list(load_registry().families.values())
    write_tiny_checkpoint(folder, "gqa", families, vocab_size=SIZE)
    weights = load_file(folder / "model.safetensors")
    for name, tensor in weights.items():
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            tensor[0] = 0
    weights["model.embed_tokens.weight"][:, 0] = 4
    weights["lm_head.weight"][:, 0] = -9
    for name in ("model.embed_tokens.weight", "lm_head.weight"):
        padding = torch.zeros(64 - SIZE, weights[name].shape[1])
        weights[name] = torch.cat([weights[name], padding])
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


SAMPLING = {
    "greedy": {},
    "top_p": {"temperature": 1.0, "top_p": 0.9, "seed": 4},
    "edited": {
        "temperature": 1.5, "seed": 4, "banned_token_ids": (3, 49), "repetition_penalty": 1.3,
        "allowed_token_ids": tuple(range(SIZE)), "min_tokens": 3,
    },
}  # fmt: skip


@pytest.mark.parametrize("name", SAMPLING)
def test_no_token_of_the_padding_comes_and_logprobs_are_over_the_vocabulary(padded, name):
    request = asking(0, [2, 7, 11, 40], 16, ignore_eos=True, logprobs=50, **SAMPLING[name])
    (plain,) = serve(build(padded), request).values()
    known = Continuations([(*request.prompt_token_ids, *plain.output_token_ids)])
    spec = ReplayConfig("replay", 4, tree=True)
    engine = build(padded, plus(replay_component("replay", known)), spec=spec)
    (drafted,) = serve(engine, request).values()
    assert drafted.accepted_tokens
    assert drafted.output_token_ids == plain.output_token_ids
    assert len(plain.output_token_ids) == 16
    assert max(plain.output_token_ids) < SIZE
    for one in plain.logprobs:
        values = torch.tensor([value for _, value in one.top], dtype=torch.float64)
        assert len(values) == SIZE
        assert values.exp().sum().item() == pytest.approx(1, abs=1e-9)


@pytest.mark.parametrize("parallel", ["threads2", "threads4"])
def test_ranks_that_share_a_padded_head_give_what_one_gives(padded, parallel):
    asked = [
        asking(index, [2, 7, 11, 40 + index], 16, ignore_eos=True, logprobs=50, **sampling)
        for index, sampling in enumerate(SAMPLING.values())
    ]
    plain = serve(build(padded), *asked)
    known = [(*one.prompt_token_ids, *plain[one.index].output_token_ids) for one in asked]
    registry = with_threads(plus(replay_component("replay", Continuations(known))))
    spec = ReplayConfig("replay", 4, tree=True)
    engine = build(padded, registry, spec=spec, parallel=parallel)
    split = serve(engine, *asked)
    engine.close()
    assert engine.core.ledger.accepted
    for index, record in plain.items():
        assert split[index].output_token_ids == record.output_token_ids
        assert max(record.output_token_ids) < SIZE
        for one, other in zip(record.logprobs, split[index].logprobs, strict=True):
            assert dict(one.top) == pytest.approx(dict(other.top), abs=1e-9)


def test_ids_of_the_padding_are_outside_the_vocabulary(padded):
    good = asking(0, [2, 7, 11], 4)
    bad = dataclasses.replace(good, index=1, sampling=dataclasses.replace(
        good.sampling, allowed_token_ids=(3, SIZE)))  # fmt: skip
    records = serve(build(padded), good, bad)
    assert "allowed_token_ids=(3, 50) is not token ids from 0 to 49" in records[1].error
    assert len(records[0].output_token_ids) == 4
