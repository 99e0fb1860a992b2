"""Tiny random models for tests: without files in any dtype, or as a Hugging Face directory.

The configs are ordinary ones, served by the families that the caller passes.
Legend: T tokens, H query heads, K key/value heads, D head size, V value head size.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from interlock.core.model import (
    Attend,
    AttentionInput,
    AttentionSpec,
    Decoder,
    HeadsInput,
    ModelDescription,
    ModelFamily,
)
from interlock.core.parallel import Placement
from interlock.core.testing.random_weights import RandomWeights

TinyKind = Literal["gqa", "mha", "mqa", "mla", "mla_moe", "hybrid", "caps", "sinks"]
KINDS: tuple[TinyKind, ...] = ("gqa", "mha", "mqa", "mla", "mla_moe", "hybrid", "caps", "sinks")
VOCAB_SIZE = 64
WINDOW = 8
"""Window of every other layer of "hybrid", "caps" and "sinks"."""

_COMMON: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "torch_dtype": "float32",
}
_LLAMA = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", **_COMMON}
_MLA: dict[str, Any] = {
    "architectures": ["DeepseekV3ForCausalLM"],
    "model_type": "deepseek_v3",
    **_COMMON,
    "num_key_value_heads": 4,
    "q_lora_rank": 16,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 8,
    "v_head_dim": 8,
    "rope_interleave": True,
    "first_k_dense_replace": 1,
    "moe_intermediate_size": 16,
    "n_routed_experts": 8,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "n_group": 2,
    "topk_group": 1,
    "norm_topk_prob": True,
    "routed_scaling_factor": 2.5,
    "num_nextn_predict_layers": 0,
}
_LOCAL = {**_COMMON, "num_key_value_heads": 2, "head_dim": 8, "sliding_window": WINDOW}
_CONFIGS: dict[TinyKind, dict[str, Any]] = {
    "gqa": {**_LLAMA, "num_key_value_heads": 2},
    "mha": {**_LLAMA, "num_key_value_heads": 4},
    "mqa": {**_LLAMA, "num_key_value_heads": 1, "tie_word_embeddings": True},
    "mla": {**_MLA, "first_k_dense_replace": 2},
    "mla_moe": _MLA,
    "hybrid": {
        **_LLAMA,
        "architectures": ["MinistralForCausalLM"],
        "model_type": "ministral",
        "num_key_value_heads": 2,
        "num_hidden_layers": 4,
        "sliding_window": WINDOW,
        "layer_types": ["full_attention", "sliding_attention"] * 2,
    },
    "caps": {
        **_LOCAL,
        "architectures": ["Gemma2ForCausalLM"],
        "model_type": "gemma2",
        "hidden_activation": "gelu_pytorch_tanh",
        "query_pre_attn_scalar": 8,
        "attn_logit_softcapping": 5.0,
        "final_logit_softcapping": 4.0,
    },
    "sinks": {
        **_LOCAL,
        "architectures": ["GptOssForCausalLM"],
        "model_type": "gpt_oss",
        "intermediate_size": 16,
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
        "attention_bias": True,
        "swiglu_limit": 1.0,
    },
}


def tiny_config(kind: TinyKind, **overrides: Any) -> dict[str, Any]:
    """The config.json of this kind, with `overrides` on top."""
    return {**_CONFIGS[kind], **overrides}


def tiny_description(
    kind: TinyKind, families: Sequence[ModelFamily], **overrides: Any
) -> ModelDescription:
    """The description of a tiny model; nothing is read or drawn."""
    config = tiny_config(kind, **overrides)
    description = _family(config, families).describe(config, f"tiny-{kind}")
    return replace(description, eos_token_ids=(config["eos_token_id"],))


def tiny_model(
    kind: TinyKind,
    families: Sequence[ModelFamily],
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
    **overrides: Any,
) -> Decoder:
    """A decoder with random weights on the CPU; the same for one seed in every dtype.

    "gqa", "mha" and "mqa" are Llamas, "mla" and "mla_moe" DeepSeek-V3. "hybrid", "caps" (Gemma 2:
    soft caps, scaled embeddings) and "sinks" (GPT-OSS: sinks, experts) alternate full attention
    and a window of 8, so that they have two cache groups. `overrides` are config fields.
    """
    description = tiny_description(kind, families, **overrides)
    return _build(description, families, RandomWeights(seed), dtype)


def write_tiny_checkpoint(
    directory: Path,
    kind: TinyKind,
    families: Sequence[ModelFamily],
    seed: int = 0,
    tokenizer: bool = False,
    **overrides: Any,
) -> Path:
    """Write the fp32 model of `tiny_model` as a Hugging Face directory; returns `directory`.

    With `tokenizer`, a byte tokenizer and a chat template are added; the vocabulary must then have
    at least 257 entries (bytes, and the end token that the config names).
    """
    from safetensors.torch import save_file

    directory.mkdir(parents=True, exist_ok=True)
    if tokenizer:
        overrides = {"vocab_size": 257, "bos_token_id": None, "eos_token_id": 256, **overrides}
    config = tiny_config(kind, **overrides)
    weights = RandomWeights(seed, keep=True)
    _build(tiny_description(kind, families, **overrides), families, weights, torch.float32)
    assert weights.kept is not None
    save_file(weights.kept, directory / "model.safetensors", metadata={"format": "pt"})
    (directory / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    if tokenizer:
        write_byte_tokenizer(directory)
    return directory


def write_byte_tokenizer(directory: Path) -> None:
    """tokenizer.json with one token a byte (ids 0 .. 255 in the byte alphabet's order) and
    `<|end|>` as id 256, and a tokenizer_config.json with a chat template."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({symbol: i for i, symbol in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken("<|end|>", special=True)])
    tokenizer.save(str(directory / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": "<|end|>",
        "clean_up_tokenization_spaces": False,
        "chat_template": (
            "{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}\n"
            "{% endfor %}{% if add_generation_prompt %}assistant:{% endif %}"
        ),
    }
    text = json.dumps(config, indent=2) + "\n"
    (directory / "tokenizer_config.json").write_text(text, encoding="utf-8")


def dense_attend(description: ModelDescription) -> Attend:
    """Causal attention of one whole sequence without a cache: the simplest thing that is right.

    Flat token i is position i. Computed in at least fp32, masks and windows from the definition.
    """

    def attend(layer: int, spec: AttentionSpec, inputs: AttentionInput) -> Tensor:
        assert spec == description.attention[layer]
        q_THD, k_THD, v_THV = (x.to(_wide(x)) for x in _expanded(spec, inputs))
        scores_HTT = torch.einsum("thd,shd->hts", q_THD, k_THD) * spec.scale
        if spec.softcap is not None:
            scores_HTT = (scores_HTT / spec.softcap).tanh() * spec.softcap
        place = torch.arange(len(q_THD))
        distance_TT = place[:, None] - place[None, :]
        hidden_TT = distance_TT < 0
        if spec.window is not None:
            hidden_TT = hidden_TT | (distance_TT >= spec.window)
        scores_HTT = scores_HTT.masked_fill(hidden_TT, -torch.inf)
        if isinstance(inputs, HeadsInput) and inputs.sinks_H is not None:
            # A sink is one more column, whose weight is dropped.
            sink_HT1 = inputs.sinks_H.to(scores_HTT.dtype)[:, None, None].expand(-1, len(place), 1)
            scores_HTT = torch.cat([scores_HTT, sink_HT1], dim=-1)
        weights_HTT = scores_HTT.softmax(dim=-1)[..., : len(place)]
        return torch.einsum("hts,shv->thv", weights_HTT, v_THV).to(_model_dtype(inputs))

    return attend


def _model_dtype(inputs: AttentionInput) -> torch.dtype:
    return inputs.v_TKV.dtype if isinstance(inputs, HeadsInput) else inputs.latent_TC.dtype


def _expanded(spec: AttentionSpec, inputs: AttentionInput) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values of every query head: [T, H, D], [T, H, D], [T, H, V]."""
    if isinstance(inputs, HeadsInput):
        shared = spec.num_heads // spec.num_kv_heads
        k_THD = inputs.k_TKD.repeat_interleave(shared, dim=1)
        return inputs.q_THD, k_THD, inputs.v_TKV.repeat_interleave(shared, dim=1)
    k_nope_THN = torch.einsum("tc,hnc->thn", inputs.latent_TC, inputs.up_k_HNC)
    v_THV = torch.einsum("tc,hvc->thv", inputs.latent_TC, inputs.up_v_HVC)
    k_rope_THR = inputs.k_rope_TR[:, None].expand(-1, spec.num_heads, -1)
    q_THD = torch.cat([inputs.q_nope_THN, inputs.q_rope_THR], dim=-1)
    return q_THD, torch.cat([k_nope_THN, k_rope_THR], dim=-1), v_THV


def _wide(tensor: Tensor) -> torch.dtype:
    return torch.promote_types(tensor.dtype, torch.float32)


def _family(config: Mapping[str, Any], families: Sequence[ModelFamily]) -> ModelFamily:
    (architecture,) = config["architectures"]
    return next(family for family in families if architecture in family.architectures)


def _build(
    description: ModelDescription,
    families: Sequence[ModelFamily],
    weights: RandomWeights,
    dtype: torch.dtype,
) -> Decoder:
    family = _family(description.config, families)
    with torch.no_grad():
        return family.build(description, weights, Placement(dtype, torch.device("cpu")))
