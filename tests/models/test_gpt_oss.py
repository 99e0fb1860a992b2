"""GPT-OSS configs as published, its experts' gate, and what is refused."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from interlock.core.checkpoint import describe_model
from interlock.core.errors import CheckpointError
from interlock.plugins.models.gpt_oss import GptOssFamily, clamped_gating
from interlock.plugins.models.hugging_face import HuggingFaceDirectory
from tests.models.loading import FAMILIES, LOGIT_TOLERANCE, load, whole_logits
from tests.models.oracle import write_oracle
from tests.models.published import PUBLISHED

GPT_OSS_20B = PUBLISHED["gpt-oss-20b"].config


def test_gpt_oss_20b_is_described() -> None:
    described = GptOssFamily().describe(GPT_OSS_20B, "gpt-oss-20b")
    assert [spec.window for spec in described.attention] == [128, None] * 12
    (spec, *_) = described.attention
    assert (spec.num_heads, spec.num_kv_heads, spec.head_dim) == (64, 8, 64)
    assert (spec.scale, spec.softcap, spec.sinks) == (1 / 8, None, True)
    assert described.splits == {"num_local_experts": 32}


def test_mxfp4_weights_are_refused_with_the_reason(tmp_path: Path) -> None:
    quantised = {"quantization_config": {"quant_method": "mxfp4"}}
    (tmp_path / "config.json").write_text(json.dumps(GPT_OSS_20B | quantised))
    with pytest.raises(CheckpointError, match=r"quantization_config \(mxfp4\): quantised weights"):
        describe_model(HuggingFaceDirectory(tmp_path), FAMILIES)


@pytest.mark.parametrize(
    ("fields", "part"),
    [
        ({"num_experts_per_tok": 33}, "num_experts_per_tok=33 is more than num_local_experts=32"),
        ({"num_local_experts": None}, "num_local_experts=None"),
        ({"num_key_value_heads": 7}, "num_key_value_heads=7"),
        ({"head_dim": 7}, "head_dim=7 is odd"),
        ({"swiglu_limit": 0}, "swiglu_limit=0"),
        ({"swiglu_alpha": "x"}, "swiglu_alpha='x'"),
        ({"hidden_act": "gelu"}, "hidden_act='gelu'"),
        ({"attention_bias": 1}, "attention_bias=1"),
        ({"sliding_window": None}, "sliding_window=null"),
        ({"layer_types": ["full_attention"] * 3}, "is not a list of 24"),
        ({"rope_scaling": {"rope_type": "yarm"}}, "kind 'yarm' is not one of"),
        ({"rope_theta": -1.0}, "rope_theta=-1.0"),
    ],
)
def test_a_config_that_cannot_be_run_names_the_field(fields: dict[str, Any], part: str) -> None:
    with pytest.raises(CheckpointError) as caught:
        GptOssFamily().describe(GPT_OSS_20B | fields, "model")
    assert part in str(caught.value)


def test_layers_alternate_from_a_window_where_layer_types_are_absent() -> None:
    config = {key: value for key, value in GPT_OSS_20B.items() if key != "layer_types"}
    described = GptOssFamily().describe(config, "model")
    assert [spec.window for spec in described.attention] == [128, None] * 12


def test_a_config_without_scaling_has_the_published_yarn(tmp_path: Path) -> None:
    oracle = write_oracle(tmp_path, "gpt_oss", new_tokens=1)
    config = HuggingFaceDirectory(tmp_path).json("config.json")
    del config["rope_parameters"]
    published = {**GPT_OSS_20B["rope_scaling"], "rope_theta": 150000.0}
    (tmp_path / "config.json").write_text(json.dumps(config | {"rope_parameters": published}))
    expected = whole_logits(load(tmp_path), oracle.prompt)
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert torch.equal(whole_logits(load(tmp_path), oracle.prompt), expected)
    assert (expected - oracle.logits(oracle.prompt)).abs().max() > LOGIT_TOLERANCE


@pytest.mark.parametrize(("gate", "up"), [(0.5, -0.25), (9.0, 9.0), (-9.0, -9.0), (2.0, 0.0)])
def test_the_gate_is_clamped_above_and_the_other_half_on_both_sides(gate: float, up: float) -> None:
    g, u = min(gate, 7.0), max(-7.0, min(up, 7.0))
    expected = (u + 1) * g / (1 + math.exp(-1.702 * g))
    made = clamped_gating(torch.tensor(gate), torch.tensor(up), 1.702, 7.0)
    assert made.item() == pytest.approx(expected, rel=1e-5)
