"""Families by their configs: published ones are described, those that cannot be run are refused."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from interlock.core.checkpoint import describe_model
from interlock.core.errors import CheckpointError
from interlock.core.model import ModelDescription, ModelFamily
from interlock.core.parallel import Placement
from interlock.core.weights import Part, Shape, WeightSource, part_shape
from interlock.plugins.models.hugging_face import HuggingFaceDirectory
from tests.models.loading import FAMILIES, LOGIT_TOLERANCE, load, whole_logits
from tests.models.oracle import write_oracle
from tests.models.published import KIMI_QUANTISATION, PUBLISHED

META = Placement(torch.bfloat16, torch.device("meta"))


class Shapes(WeightSource):
    """Counts the parameters that a family asks for, and has none."""

    def __init__(self) -> None:
        super().__init__("shapes")
        self.parameters = 0

    def names(self) -> frozenset[str]:
        return frozenset(self._taken)

    def shape(self, name: str) -> Shape | None:
        return None

    def has(self, name: str) -> bool:
        return False

    def take(
        self, name: str, shape: Shape, dtype: torch.dtype, device: torch.device, part: Part = ()
    ) -> Tensor:
        assert name not in self._taken
        self._taken.add(name)
        self.parameters += torch.Size(shape).numel()
        return torch.empty(part_shape(shape, part), dtype=dtype, device=device)

    def read(
        self, name: str, shape: Shape, dtype: torch.dtype, device: torch.device, part: Part = ()
    ) -> Tensor:
        raise AssertionError


def family_of(config: dict[str, Any]) -> ModelFamily:
    (name,) = config["architectures"]
    return next(family for family in FAMILIES if name in family.architectures)


def described(config: dict[str, Any]) -> ModelDescription:
    return family_of(config).describe(config, "m")


def parameters(config: dict[str, Any], layers: int) -> int:
    """Of the same model with so many layers."""
    cut = {"num_hidden_layers": layers, "max_position_embeddings": 8}
    kinds = config.get("layer_types")
    config = config | cut | ({"layer_types": kinds[:layers]} if kinds else {})
    if "attn_type_list" in config:
        config |= {"attn_type_list": [1] * layers}
    weights = Shapes()
    family_of(config).build(described(config), weights, META)
    return weights.parameters


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_model_has_as_many_parameters_as_its_card_states(name: str) -> None:
    """Every layer from the second on has as many."""
    config, stated = PUBLISHED[name]
    two, three = parameters(config, 2), parameters(config, 3)
    assert two + (config["num_hidden_layers"] - 2) * (three - two) == stated


EXPECTED: dict[str, dict[str, Any]] = {
    "Mistral-7B-v0.1": {"windows": {4096}, "max_positions": 32768},
    "Mixtral-8x7B-v0.1": {"splits": {"num_local_experts": 8}},
    "Qwen2.5-7B": {"windows": {None}, "splits": {"intermediate_size": 18944}},
    "Qwen1.5-MoE-A2.7B": {
        "splits": {"num_experts": 60, "shared_expert_intermediate_size": 5632},
        "windows": {None},
    },
    "Qwen3-8B": {"head_dim": 128, "max_positions": 40960},
    "Qwen3-30B-A3B": {"head_dim": 128, "splits": {"num_experts": 128}},
    "GLM-4.5-Air": {
        "splits": {
            "intermediate_size": 10944,
            "moe_intermediate_size * n_shared_experts": 1408,
            "n_routed_experts": 128,
        },
    },
    "OLMo-3-7B": {"windows": {4096, None}, "max_positions": 65536, "head_dim": 128},
    "MiniMax-M2": {"splits": {"num_local_experts": 256}, "max_positions": 196608},
    "DeepSeek-V2-Lite": {"head_dim": 192, "max_positions": 163840},
    "Kimi-K2": {"head_dim": 192, "num_layers": 61},
    "gemma-2-2b": {"windows": {4096, None}, "splits": {"intermediate_size": 9216}},
    "gemma-3-1b": {"windows": {512, None}, "max_positions": 32768, "head_dim": 256},
    "gpt-oss-20b": {"windows": {128, None}, "splits": {"num_local_experts": 32}},
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_config_is_described(name: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(PUBLISHED[name].config))
    model = describe_model(HuggingFaceDirectory(tmp_path), FAMILIES)
    assert model.dtype == "bfloat16"
    assert model.limited_by == ""
    actual = {
        "windows": {spec.window for spec in model.attention},
        "head_dim": model.attention[0].head_dim,
        "max_positions": model.max_positions,
        "num_layers": model.num_layers,
        "splits": model.splits,
    }
    assert {key: actual[key] for key in EXPECTED[name]} == EXPECTED[name]


def test_a_published_quantised_config_is_refused_with_the_reason(tmp_path: Path) -> None:
    config = PUBLISHED["Kimi-K2"].config | {"quantization_config": KIMI_QUANTISATION}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match=r"quantization_config \(fp8\): quantised weights"):
        describe_model(HuggingFaceDirectory(tmp_path), FAMILIES)


TRAPS: list[tuple[str, dict[str, Any], str]] = [
    ("Qwen3-8B", {"hidden_act": "gelu"}, "hidden_act='gelu' is not one of silu"),
    ("Qwen3-8B", {"intermediate_size": None}, "intermediate_size=None is not an integer"),
    ("Qwen3-8B", {"max_window_layers": -1}, "max_window_layers=-1"),
    ("Qwen3-8B", {"head_dim": 127}, "head_dim=127 is odd"),
    ("Qwen3-8B", {"layer_types": ["full_attention"] * 35}, "is not a list of 36 of full_attention"),
    ("Qwen3-8B", {"layer_types": ["chunked_attention"] * 36}, "is not a list of 36"),
    (
        "Qwen3-8B",
        {"layer_types": ["sliding_attention"] * 36},
        "layer_types has sliding_attention, but use_sliding_window is false",
    ),
    ("Qwen3-8B", {"rope_scaling": {"type": "default", "factor": 2.0}}, r"not used: \['factor'\]"),
    ("Qwen3-8B", {"partial_rotary_factor": 0.5}, "partial_rotary_factor=0.5 is not supported"),
    ("Qwen3-8B", {"num_key_value_heads": 5}, "is not a multiple of num_key_value_heads=5"),
    ("Qwen3-30B-A3B", {"num_experts_per_tok": 129}, "129 is more than num_experts=128"),
    ("Qwen3-30B-A3B", {"num_experts": None}, "num_experts=None is not an integer"),
    ("Qwen3-30B-A3B", {"num_local_experts": 64}, "num_experts=128 is not num_local_experts=64"),
    ("Qwen3-30B-A3B", {"mlp_only_layers": [48]}, r"mlp_only_layers=\[48\] is not a list of layers"),
    ("Qwen3-30B-A3B", {"decoder_sparse_step": 0}, "decoder_sparse_step=0"),
    ("Qwen3-30B-A3B", {"moe_intermediate_size": None}, "moe_intermediate_size=None"),
    (
        "Qwen1.5-MoE-A2.7B",
        {"shared_expert_intermediate_size": None},
        "shared_expert_intermediate_size=None",
    ),
    ("Qwen1.5-MoE-A2.7B", {"norm_topk_prob": 1}, "norm_topk_prob=1 is not true or false"),
    ("Mixtral-8x7B-v0.1", {"num_experts_per_tok": 9}, "9 is more than num_local_experts=8"),
    ("Mixtral-8x7B-v0.1", {"num_experts_per_tok": None}, "num_experts_per_tok=None"),
    ("Mixtral-8x7B-v0.1", {"sliding_window": 0}, "sliding_window=0 is not an integer >= 1"),
    ("GLM-4.5-Air", {"n_group": 3}, "n_group=3, topk_group=1 do not divide n_routed_experts=128"),
    ("GLM-4.5-Air", {"n_group": 32}, "num_experts_per_tok=8 is more than the 4 experts"),
    ("GLM-4.5-Air", {"scoring_func": "softmax"}, "scoring_func='softmax' is not supported"),
    ("GLM-4.5-Air", {"partial_rotary_factor": 1.5}, r"is not a number in \(0, 1\]"),
    ("GLM-4.5-Air", {"partial_rotary_factor": 0.4}, "51 entries of a head are odd"),
    ("OLMo-3-7B", {"layer_types": None, "sliding_window": None}, "sliding_window=null, but layers"),
    ("OLMo-3-7B", {"layer_types": ["full_attention"]}, "is not a list of 32"),
    (
        "OLMo-3-7B",
        {"rope_parameters": {"rope_type": "default"}},
        "is not an object of full_",
    ),
    (
        "OLMo-3-7B",
        {
            "rope_parameters": {"full_attention": {"rope_type": "default", "factor": 2.0}},
            "rope_scaling": None,
        },
        r"not used: \['factor'\]",
    ),
    ("MiniMax-M2", {"attn_type_list": [0] + [1] * 61}, "attn_type_list="),
    ("MiniMax-M2", {"rotary_dim": 256}, "rotary_dim=256 is not"),
    ("MiniMax-M2", {"partial_rotary_factor": 0.25}, "rotary_dim=64 is not partial_rotary_factor"),
    ("MiniMax-M2", {"scoring_func": "softmax"}, "scoring_func='softmax' is not supported"),
    ("MiniMax-M2", {"use_routing_bias": False}, "use_routing_bias=False is not supported"),
    ("MiniMax-M2", {"shared_intermediate_size": 8}, "shared_intermediate_size=8 is not supported"),
    ("MiniMax-M2", {"layernorm_mlp_beta": 2.0}, "layernorm_mlp_beta=2.0 is not supported"),
    ("Kimi-K2", {"n_group": 5}, "n_group=5"),
    ("DeepSeek-V2-Lite", {"num_experts_per_tok": 65}, "65 is more than n_routed_experts=64"),
    (
        "Mistral-7B-v0.1",
        {"layer_types": ["full_attention", "sliding_attention"] * 16},
        "transformers ignores it in MistralForCausalLM and sees sliding_attention everywhere",
    ),
    ("Qwen3-8B", {"tie_word_embeddings": "yes"}, "tie_word_embeddings='yes' is not true or false"),
    ("Kimi-K2", {"attention_bias": 0}, "attention_bias=0 is not true or false"),
    ("Kimi-K2", {"first_k_dense_replace": -1}, "first_k_dense_replace=-1 is not an integer >= 0"),
    ("Kimi-K2", {"num_local_experts": 8}, "n_routed_experts=384 is not num_local_experts=8"),
    ("GLM-4.5-Air", {"num_nextn_predict_layers": 10**12}, "at most 10000"),
    ("OLMo-3-7B", {"rope_theta": 0}, "rope_theta=0 is not a finite number > 0"),
    ("gemma-3-1b", {"rope_local_base_freq": "slow"}, "rope_local_base_freq='slow' is not a"),
    ("Mistral-7B-v0.1", {"rope_scaling": {"type": "su"}}, "kind 'su' is not one of default"),
]


@pytest.mark.parametrize(("name", "fields", "reason"), TRAPS)
def test_a_config_that_cannot_be_run_names_the_field(
    name: str, fields: dict[str, Any], reason: str
) -> None:
    with pytest.raises(CheckpointError, match=reason):
        described(PUBLISHED[name].config | fields)


def test_every_problem_of_a_config_is_reported_at_once() -> None:
    broken = PUBLISHED["GLM-4.5-Air"].config | {"hidden_act": "relu", "n_group": 3}
    with pytest.raises(CheckpointError, match=r"hidden_act='relu'.*n_group=3"):
        described(broken | {"num_experts_per_tok": 8})


@pytest.mark.parametrize(
    ("name", "absent"), [("Qwen3-8B", 128), ("MiniMax-M2", 128), ("GLM-4.5-Air", 44)]
)
def test_an_absent_head_size_is_the_familys(name: str, absent: int) -> None:
    config = PUBLISHED[name].config | {"hidden_size": 96 * 44}
    assert described(config | {"head_dim": None}).attention[0].head_dim == absent
    assert described(config | {"head_dim": 64}).attention[0].head_dim == 64


def test_layers_by_type_or_by_the_familys_pattern() -> None:
    """Where `layer_types` is absent: Qwen's last layers, Qwen2-MoE's first odd ones, OLMo's 3:1."""

    def windows(name: str, **fields: Any) -> list[int | None]:
        config = PUBLISHED[name].config | {"num_hidden_layers": 8, "layer_types": None} | fields
        return [spec.window for spec in described(config).attention]

    used = {"use_sliding_window": True, "sliding_window": 16}
    assert windows("Qwen3-8B", max_window_layers=5, **used) == [None] * 5 + [16] * 3
    assert windows("Qwen1.5-MoE-A2.7B", max_window_layers=4, **used) == [
        *[16, None, 16, None],
        *[None] * 4,
    ]
    assert windows("Qwen3-30B-A3B", **used) == [16] * 8
    assert windows("OLMo-3-7B") == [*[4096] * 3, None] * 2


MOVED = {
    "qwen3": "model.layers.1.self_attn.q_norm.weight",
    "qwen2_moe": "model.layers.0.mlp.shared_expert_gate.weight",
    "qwen3_moe": "model.layers.1.mlp.experts.3.up_proj.weight",
    "mixtral": "model.layers.1.block_sparse_moe.experts.7.w3.weight",
    "glm4_moe": "model.layers.1.mlp.gate.e_score_correction_bias",
    "olmo3": "model.layers.3.post_feedforward_layernorm.weight",
    "minimax_m2": "model.layers.1.block_sparse_moe.e_score_correction_bias",
    "kimi_k2": "model.layers.1.self_attn.kv_b_proj.weight",
}


@pytest.mark.parametrize("shape", MOVED)
def test_a_tensor_that_is_missing_renamed_or_of_another_size_is_listed(
    shape: str, tmp_path: Path
) -> None:
    write_oracle(tmp_path, shape, new_tokens=1)
    file, name = tmp_path / "model.safetensors", MOVED[shape]
    stored = load_file(file)
    rest = {key: tensor for key, tensor in stored.items() if key != name}
    for change, problems in (
        (rest, [rf"missing \(1\): {name}"]),
        (rest | {f"{name}s": stored[name]}, [rf"missing \(1\): {name} ", rf"\(1\): {name}s "]),
        (rest | {name: torch.zeros(3)}, [rf"misshapen \(1\): {name} is \[3\]"]),
    ):
        save_file(change, file)
        for problem in problems:
            with pytest.raises(CheckpointError, match=problem):
                load(tmp_path)


@pytest.mark.parametrize("shape", ["qwen3_biased", "olmo3", "minimax_m2"])
@pytest.mark.parametrize("stored", ["absent", "equal", "different"])
def test_a_tied_head_is_the_embedding(shape: str, stored: str, tmp_path: Path) -> None:
    oracle = write_oracle(tmp_path, shape, new_tokens=1, tie_word_embeddings=True)
    file = tmp_path / "model.safetensors"
    tensors = load_file(file)
    assert "lm_head.weight" not in tensors
    if stored != "absent":
        factor = 1 if stored == "equal" else 2
        tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"] * factor
        save_file(tensors, file)
    if stored == "different":
        with pytest.raises(CheckpointError, match="tie_word_embeddings is true, but lm_head"):
            load(tmp_path)
        return
    logits = whole_logits(load(tmp_path), oracle.prompt)
    assert (logits - oracle.logits(oracle.prompt)).abs().max() < LOGIT_TOLERANCE


def test_shards_of_an_expert_model_are_one_model_and_a_lost_one_is_named(tmp_path: Path) -> None:
    oracle = write_oracle(tmp_path, "mixtral", shard_size="200KB", new_tokens=1)
    shards = sorted(tmp_path.glob("model-*.safetensors"))
    assert len(shards) >= 3
    logits = whole_logits(load(tmp_path), oracle.prompt)
    assert (logits - oracle.logits(oracle.prompt)).abs().max() < LOGIT_TOLERANCE
    whole = shards[1].read_bytes()
    shards[1].write_bytes(whole[: len(whole) // 2])
    with pytest.raises(CheckpointError, match=shards[1].name):
        load(tmp_path)
    shards[1].unlink()
    with pytest.raises(CheckpointError, match=shards[1].name):
        load(tmp_path)


def test_prediction_layers_of_glm_are_left_out_where_they_are_stated(tmp_path: Path) -> None:
    write_oracle(tmp_path, "glm4_moe", new_tokens=1)
    file = tmp_path / "model.safetensors"
    save_file({**load_file(file), "model.layers.2.eh_proj.weight": torch.zeros(2)}, file)
    with pytest.raises(CheckpointError, match=r"unexpected \(1\): model.layers.2.eh_proj.weight"):
        load(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"num_nextn_predict_layers": 1}))
    load(tmp_path)


def test_old_and_new_spellings_of_olmos_rotary_fields_are_one_architecture(tmp_path: Path) -> None:
    oracle = write_oracle(tmp_path, "olmo3", new_tokens=1)
    new = whole_logits(load(tmp_path), oracle.prompt)
    config = json.loads((tmp_path / "config.json").read_text())
    full = dict(config.pop("rope_parameters")["full_attention"])
    config |= {"rope_theta": full.pop("rope_theta"), "rope_scaling": full}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert torch.equal(whole_logits(load(tmp_path), oracle.prompt), new)
    (tmp_path / "config.json").write_text(json.dumps(config | {"rope_theta": 20.0}))
    assert not torch.equal(whole_logits(load(tmp_path), oracle.prompt), new)


def test_a_head_that_is_rotated_in_part_keeps_the_rest(tmp_path: Path) -> None:
    """Logits change with the rotated size, and equal those of an explicit old-style field."""
    oracle = write_oracle(tmp_path, "minimax_m2", new_tokens=1)
    config = json.loads((tmp_path / "config.json").read_text())
    logits = whole_logits(load(tmp_path), oracle.prompt)
    del config["rope_parameters"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert torch.equal(whole_logits(load(tmp_path), oracle.prompt), logits)
    (tmp_path / "config.json").write_text(json.dumps(config | {"rotary_dim": 16}))
    assert not torch.equal(whole_logits(load(tmp_path), oracle.prompt), logits)
