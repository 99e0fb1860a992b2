"""numerics=batch_invariant for whole requests: odd sizes, adapters, edits, log-probabilities."""

import dataclasses

import pytest
import torch

from interlock.core.assemble import build_engine
from interlock.core.request import Request, SamplingParams
from interlock.core.testing.logit_bits import LogitBits
from interlock.core.testing.tiny import write_tiny_checkpoint
from interlock.core.testing.tiny_adapter import write_adapter
from interlock.core.testing.tiny_eagle import write_tiny_eagle
from interlock.plugins.models import model_families
from tests.engine.serving import configured, serve

ODD = {
    "gqa": {"hidden_size": 50, "head_dim": 14, "intermediate_size": 63, "vocab_size": 101,
            "num_attention_heads": 6, "num_key_value_heads": 2},
    "hybrid": {"hidden_size": 40, "head_dim": 14, "intermediate_size": 17, "vocab_size": 67,
               "sliding_window": 65},
    "mla_moe": {"vocab_size": 103},
}  # fmt: skip
"""No size is a multiple of a vector, and a window crosses a tile of keys by one."""


def asked(vocab):
    """Prompts that share beginnings, three of them longer than two tiles of keys."""
    shared = [2 + (5 * i * i + i) % (vocab - 2) for i in range(150)]
    edited = {"repetition_penalty": 1.3, "frequency_penalty": 0.5, "logit_bias": {5: 2.0}}
    plain = {"top_p": 0.9, "top_k": 20, "min_p": 0.01}
    for index in range(6):
        own = [2 + (7 * index * i + i) % (vocab - 2) for i in range(1 + 5 * index)]
        sampling = SamplingParams(
            temperature=0.9 * (index % 3 > 0), seed=index, max_tokens=8, logprobs=3,
            ignore_eos=True, **(edited if index % 2 else plain),
        )  # fmt: skip
        prompt = tuple(shared[: 75 * (index % 3)] + own)
        yield Request(index, prompt, sampling, adapter="a" if index % 2 else None)


@pytest.mark.parametrize(("kind", "dtype", "page_size", "spec"), [
    ("gqa", "float32", 1, "eagle"),
    ("gqa", "float16", 64, "ngram"),
    ("hybrid", "bfloat16", 5, "eagle"),
    ("hybrid", "float64", 3, "none"),
    ("mla_moe", "bfloat16", 7, "ngram"),
])  # fmt: skip
def test_tokens_and_log_probabilities_have_the_bits_of_the_request_alone(
    kind, dtype, page_size, spec, tmp_path
):
    model = write_tiny_checkpoint(tmp_path / "model", kind, model_families(), **ODD[kind])
    write_tiny_eagle(model / "eagle", model)
    adapter = write_adapter(tmp_path / "a", model, ["q_proj", "down_proj"], rank=3)

    def engine(**choices):
        attention = "mla" if kind == "mla_moe" else "gqa"
        config = configured(model, attention=attention, **choices)
        ours = {"numerics": "batch_invariant", "dtype": dtype, "adapters": (str(adapter),)}
        return build_engine(dataclasses.replace(config, **ours))

    requests = list(asked(ODD[kind]["vocab_size"]))
    together = engine(
        index="radix", spec=spec, page_size=page_size, num_pages=-(-260 // page_size) + 2,
        budget_tokens=48, max_requests=5,
    )  # fmt: skip
    bits = LogitBits(together)
    records = serve(together, *requests)
    compared = 0
    for request in requests:
        alone = engine(index="none", page_size=16, num_pages=20, budget_tokens=256)
        expected = LogitBits(alone)
        right = serve(alone, dataclasses.replace(request, index=0))[0]
        assert records[request.index].output_token_ids == right.output_token_ids
        assert records[request.index].logprobs == right.logprobs
        for (_, place), (row,) in expected.rows.items():
            found = bits.rows.get((request.index, place), ())  # none for what a hit gave
            compared += len(found)
            assert all(torch.equal(one, row) for one in found)
    assert compared > 300
