"""numerics=batch_invariant: the bits of every logit depend on the request's tokens alone."""

import dataclasses

import pytest
import torch

from interlock.core.assemble import build_engine
from interlock.core.errors import ConfigError
from interlock.core.request import Request, SamplingParams
from interlock.core.testing.logit_bits import LogitBits
from interlock.core.testing.replay_drafter import Continuations, ReplayConfig, replay_component
from interlock.core.testing.tiny import write_tiny_checkpoint
from interlock.core.testing.tiny_eagle import write_tiny_eagle
from interlock.plugins.models import model_families
from tests.engine.serving import configured, plus, serve

DTYPES = ("float32", "bfloat16")
KINDS = ("gqa", "mla_moe", "hybrid", "caps", "sinks")


@pytest.fixture(scope="module", params=KINDS)
def model(request, tmp_path_factory):
    directory = tmp_path_factory.mktemp(request.param) / "model"
    write_tiny_checkpoint(directory, request.param, model_families())
    write_tiny_eagle(directory / "eagle", directory)
    return directory


def engine(model, dtype, numerics="batch_invariant", registry=None, **choices):
    attention = "mla" if model.parent.name.startswith("mla") else "gqa"
    config = configured(model, registry, **{"attention": attention, **choices})
    return build_engine(dataclasses.replace(config, dtype=dtype, numerics=numerics), registry)


def recorded(made, requests):
    """Records, and the logits of every position of every request."""
    bits = LogitBits(made)
    return serve(made, *requests), bits.rows


def asked(count=9):
    shared = [2 + (5 * i * i + i) % 60 for i in range(21)]
    own = [[2 + (7 * k * i + k) % 60 for i in range(3 + 4 * k)] for k in range(count)]
    sampled = SamplingParams(temperature=0.9, top_p=0.95, seed=3, max_tokens=9)
    greedy = SamplingParams(max_tokens=9)
    return [
        Request(k, tuple(shared[: 7 * (k % 4)] + own[k]), sampled if k % 2 else greedy)
        for k in range(count)
    ]


def alone(model, dtype, request):
    made = engine(model, dtype, index="none", page_size=16, num_pages=32)
    records, bits = recorded(made, [dataclasses.replace(request, index=0)])
    return records[0].output_token_ids, {place: rows[0] for (_, place), rows in bits.items()}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("spec", ["none", "ngram", "eagle", "tree"])
def test_logits_have_the_bits_of_the_request_run_alone(model, dtype, spec):
    requests = asked()
    solo = {r.index: alone(model, dtype, r) for r in requests}
    registry = None
    if spec == "tree":
        known = [(*r.prompt_token_ids, *solo[r.index][0]) for r in requests]
        registry = plus(replay_component("replay", Continuations(known), tree=True))
        spec = ReplayConfig("replay", 4, tree=True, wrong_percent=30)
    made = engine(
        model, dtype, registry=registry, spec=spec, index="radix", page_size=4, num_pages=44,
        budget_tokens=24, max_requests=5,
    )  # fmt: skip
    first, bits = recorded(made, requests)
    compared = 0
    for index, record in first.items():
        tokens, expected = solo[index]
        assert record.output_token_ids == tokens
        for (request_id, place), rows in bits.items():
            if request_id == index and place in expected:  # not past the request's end
                assert all(torch.equal(row, expected[place]) for row in rows)
                compared += len(rows)
    assert compared > 150
    assert made.core.cache.counters.hits
    assert made.core.queues.counters.chunks


def test_fast_numerics_do_differ_between_batches(tmp_path):
    """Otherwise the tests above could not fail."""
    write_tiny_checkpoint(tmp_path / "gqa", "gqa", model_families())
    requests = asked()
    _, bits = recorded(engine(tmp_path / "gqa", "float32", "fast", num_pages=64), requests)
    single = engine(tmp_path / "gqa", "float32", "fast", num_pages=64, index="none")
    differ = 0
    for index, request in enumerate(requests):
        _, alone_bits = recorded(single, [dataclasses.replace(request, index=0)])
        same = [(rows[0], alone_bits[index, p][0]) for (i, p), rows in bits.items() if i == index]
        differ += sum(not torch.equal(a, b) for a, b in same)
    assert differ


def test_a_backend_without_them_is_refused_with_what_would_work(tmp_path):
    write_tiny_checkpoint(tmp_path / "gqa", "gqa", model_families())
    with pytest.raises(ConfigError) as caught:
        engine(tmp_path / "gqa", "float32", attention="reference")
    assert "numerics=batch_invariant" in str(caught.value)
    assert "attention=gqa" in str(caught.value)
    with pytest.raises(ConfigError, match="executor=fixed"):
        engine(tmp_path / "gqa", "float32", executor="fixed")
