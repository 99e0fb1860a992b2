"""Gemma configs as published and as transformers writes them, and what they may not say."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from interlock.core.checkpoint import describe_model
from interlock.core.errors import CheckpointError
from interlock.core.model import ModelDescription
from interlock.plugins.models.gemma import Gemma2Family, Gemma3Family
from interlock.plugins.models.hugging_face import HuggingFaceDirectory
from interlock.plugins.models.windows import FULL
from tests.models.loading import FAMILIES, load, whole_logits
from tests.models.oracle import SHAPES, random_model, write_oracle
from tests.models.published import PUBLISHED

GEMMA_2_2B, GEMMA_3_1B = (PUBLISHED[name].config for name in ("gemma-2-2b", "gemma-3-1b"))


def describe(config: dict[str, Any]) -> ModelDescription:
    family = Gemma2Family() if config["architectures"] == ["Gemma2ForCausalLM"] else Gemma3Family()
    return family.describe(config, "model")


def refusal(config: dict[str, Any]) -> str:
    with pytest.raises(CheckpointError) as caught:
        describe(config)
    return str(caught.value)


def without(config: dict[str, Any], *fields: str) -> dict[str, Any]:
    return {key: value for key, value in config.items() if key not in fields}


def test_gemma_2_2b_is_described() -> None:
    described = describe(GEMMA_2_2B)
    assert [spec.window for spec in described.attention] == [4096, None] * 13
    (spec, *_) = described.attention
    assert (spec.num_heads, spec.num_kv_heads, spec.head_dim) == (8, 4, 256)
    assert (spec.scale, spec.softcap, spec.sinks) == (1 / 16, 50.0, False)
    assert described.splits == {"intermediate_size": 9216}


def test_gemma_3_1b_is_described_with_every_sixth_layer_global() -> None:
    described = describe(GEMMA_3_1B)
    windows = [spec.window for spec in described.attention]
    assert [layer for layer, window in enumerate(windows) if window is None] == [5, 11, 17, 23]
    assert {window for window in windows if window} == {512}
    assert {spec.softcap for spec in described.attention} == {None}


@pytest.mark.parametrize(("stated", "cap"), [("absent", 50.0), (None, None), (7.5, 7.5)])
def test_an_absent_soft_cap_is_gemma_2s_and_null_is_none(stated: Any, cap: float | None) -> None:
    config = without(GEMMA_2_2B, "attn_logit_softcapping")
    if stated != "absent":
        config["attn_logit_softcapping"] = stated
    assert describe(config).attention[0].softcap == cap


def test_old_and_new_spellings_of_gemma_3_give_equal_logits(tmp_path: Path) -> None:
    oracle = write_oracle(tmp_path, "gemma3", new_tokens=1)
    new = whole_logits(load(tmp_path), oracle.prompt)
    config = without(
        HuggingFaceDirectory(tmp_path).json("config.json"),
        "layer_types",
        "rope_parameters",
        "tie_word_embeddings",
    )
    old = {
        "rope_theta": 1000.0,
        "rope_local_base_freq": 100.0,
        "rope_scaling": {"rope_type": "linear", "factor": 8.0},
        "sliding_window_pattern": 6,
    }
    (tmp_path / "config.json").write_text(json.dumps(config | old))
    assert torch.equal(whole_logits(load(tmp_path), oracle.prompt), new)
    (tmp_path / "config.json").write_text(json.dumps(config | old | {"rope_local_base_freq": 50.0}))
    assert not torch.equal(whole_logits(load(tmp_path), oracle.prompt), new)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_the_embedding_scale_is_rounded_like_that_of_transformers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype
) -> None:
    kind, fields = SHAPES["gemma2"]
    monkeypatch.setitem(SHAPES, "gemma2", (kind, {**fields, "hidden_size": 60}))
    model = random_model("gemma2").to(dtype)
    model.save_pretrained(tmp_path)
    decoder, ids = load(tmp_path, dtype), torch.arange(50)
    seen: list[torch.Tensor] = []
    block = decoder.blocks[0]  # type: ignore[attr-defined]
    monkeypatch.setattr(block, "before_attention", lambda x: seen.append(x) or x)
    whole_logits(decoder, ids.tolist())
    assert torch.equal(seen[0], model.model.embed_tokens(ids))
    assert torch.equal(decoder.embed(ids), model.model.embed_tokens.weight[ids])


@pytest.mark.parametrize(
    ("fields", "part"),
    [
        ({"use_bidirectional_attention": True}, "use_bidirectional_attention=True is refused"),
        ({"use_bidirectional_attention": "all"}, "use_bidirectional_attention='all'"),
        ({"hidden_activation": "gelu"}, "hidden_activation='gelu' is not one of gelu_pytorch_tanh"),
        ({"num_key_value_heads": 3}, "num_key_value_heads=3"),
        ({"head_dim": 63}, "head_dim=63 is odd"),
        ({"query_pre_attn_scalar": 0}, "query_pre_attn_scalar=0"),
        ({"sliding_window": None}, "sliding_window=null, but layers of kind sliding_attention"),
        ({"sliding_window": 0}, "sliding_window=0"),
        ({"layer_types": ["full_attention"]}, "is not a list of 26"),
        ({"layer_types": ["chunked_attention"] * 26}, "of full_attention, sliding_attention"),
        ({"layer_types": [["full_attention"]] * 26}, "of full_attention, sliding_attention"),
        ({"final_logit_softcapping": -1.0}, "final_logit_softcapping=-1.0"),
    ],
)
def test_a_config_that_cannot_be_run_names_the_field(fields: dict[str, Any], part: str) -> None:
    assert part in refusal(GEMMA_2_2B | fields)
    assert part in refusal(GEMMA_3_1B | fields)


@pytest.mark.parametrize(
    ("fields", "part"),
    [
        ({"attn_logit_softcapping": 50.0}, "attn_logit_softcapping=50.0 is not null"),
        ({"sliding_window_pattern": 0}, "sliding_window_pattern=0"),
        ({"rope_parameters": {"rope_type": "default"}}, "is not an object of full_attention"),
        ({"rope_parameters": {FULL: {}}, "rope_scaling": {"factor": 2}}, "are both given"),
        ({"rope_scaling": {"rope_type": "yarm", "factor": 2}}, "rope_scaling of kind 'yarm'"),
        (
            {"rope_parameters": {"sliding_attention": {"rope_type": "yarm"}}},
            "sliding_attention: rope_parameters of kind 'yarm'",
        ),
        ({"rope_local_base_freq": -1}, "rope_local_base_freq=-1 is not"),
    ],
)
def test_a_gemma_3_config_that_cannot_be_run_names_the_field(
    fields: dict[str, Any], part: str
) -> None:
    assert part in refusal(GEMMA_3_1B | fields)


def test_a_model_with_a_vision_tower_is_refused_with_the_reason(tmp_path: Path) -> None:
    config = {"architectures": ["Gemma3ForConditionalGeneration"], "text_config": GEMMA_3_1B}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match="is refused: it wraps a vision tower") as caught:
        describe_model(HuggingFaceDirectory(tmp_path), FAMILIES)
    assert "served as Gemma3ForCausalLM" in str(caught.value)
