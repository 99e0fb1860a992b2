"""GGUF metadata as the config.json of the same model.

A GGUF file names its architecture and prefixes the metadata with it; key names are llama.cpp's
(https://github.com/ggml-org/ggml/blob/master/docs/gguf.md). What is not understood is refused:
a model would be computed wrong without it.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy
import torch

from interlock.core.closest import unknown_name
from interlock.core.errors import CheckpointError
from interlock.plugins.models.gguf_file import GGUFFile
from interlock.plugins.models.rope import rope_rates
from interlock.plugins.models.rope_scaling import read_rope

FIELDS = {
    "block_count": "num_hidden_layers",
    "context_length": "max_position_embeddings",
    "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
    "attention.key_length": "head_dim",
    "rope.freq_base": "rope_theta",
    "vocab_size": "vocab_size",
}
"""Metadata of every architecture -> field of config.json."""
NEUTRAL = {
    "expert_count": 0,
    "expert_used_count": 0,
    "expert_gating_func": 1,  # softmax
    "attention.causal": True,
    "tensor_data_layout": "Meta AI original pth",
}
"""Metadata that says nothing when it has this value."""
OPTIONAL = {
    "attention.head_count_kv",
    "attention.key_length",
    "rope.freq_base",
    "rope.freq_base_swa",
    "vocab_size",
}
ROPE_FREQS = "rope_freqs.weight"
LLAMA3_POSITIONS = 8192
LLAMA3 = {
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": LLAMA3_POSITIONS,
}
FLOATS = {0: "float32", 1: "float16", 28: "float64"}
"""Of the tensor types' numbers; 30 is bfloat16."""
FACTOR_TOLERANCE = 1e-4
"""Relative; factors are computed and stored in fp32."""


@dataclass(frozen=True)
class Layout:
    """How GGUF stores the models of one of its architectures."""

    architecture: str
    """The class in config.json's `architectures`, whose family serves it."""
    model_type: str
    permuted: bool = False
    """Rows of q and k are in pairs (2i, 2i+1), as llama.cpp rotates them."""
    windowed: str | None = None
    """The class that stands in when `attention.sliding_window` is stated."""
    norm_offset: float = 0.0
    """What the file's norm weights are more than Hugging Face's."""
    wide_scale: int | None = None
    """Models with a query_pre_attn_scalar: hidden size / heads at this number of layers (the 27B;
    no metadata tells), else the head size."""
    respelled: bool = False
    """Tokens of several spaces are spelled with spaces, and merges are in the order of tokens."""
    fields: Mapping[str, str] = field(default_factory=dict)
    """More metadata -> field of config.json."""
    fixed: Mapping[str, Any] = field(default_factory=dict)
    """Fields that all models of the architecture share."""


SILU = {"hidden_act": "silu"}
EXPERTS = {
    "expert_count": "num_experts",
    "expert_used_count": "num_experts_per_tok",
    "expert_feed_forward_length": "moe_intermediate_size",
}
SPARSE = {**SILU, "decoder_sparse_step": 1, "mlp_only_layers": []}
GEMMA = {"hidden_activation": "gelu_pytorch_tanh"}
WINDOW = {"attention.sliding_window": "sliding_window"}
LAYOUTS = {
    "llama": Layout(
        "LlamaForCausalLM", "llama", permuted=True, windowed="MistralForCausalLM", fixed=SILU
    ),
    "qwen2": Layout("Qwen2ForCausalLM", "qwen2", fixed=SILU),
    "qwen3": Layout("Qwen3ForCausalLM", "qwen3", fixed=SILU),
    "qwen2moe": Layout(
        "Qwen2MoeForCausalLM",
        "qwen2_moe",
        fields={
            **EXPERTS,
            "expert_shared_feed_forward_length": "shared_expert_intermediate_size",
        },
        fixed={**SPARSE, "norm_topk_prob": False},
    ),
    "qwen3moe": Layout(
        "Qwen3MoeForCausalLM", "qwen3_moe", fields=EXPERTS, fixed={**SPARSE, "norm_topk_prob": True}
    ),
    "gemma2": Layout(
        "Gemma2ForCausalLM",
        "gemma2",
        norm_offset=1.0,
        wide_scale=46,
        respelled=True,
        fields={
            **WINDOW,
            "attn_logit_softcapping": "attn_logit_softcapping",
            "final_logit_softcapping": "final_logit_softcapping",
        },
        fixed=GEMMA,
    ),
    "gemma3": Layout(
        "Gemma3ForCausalLM",
        "gemma3_text",
        norm_offset=1.0,
        wide_scale=62,
        respelled=True,
        fields={**WINDOW, "rope.freq_base_swa": "rope_local_base_freq"},
        fixed={**GEMMA, "sliding_window_pattern": 6},
    ),
}
"""The architectures that can be read: one row each."""


def layout_of(file: GGUFFile) -> Layout:
    """The row of the file's architecture. CheckpointError for one that cannot be read."""
    name = str(file.metadata.get("general.architecture"))
    kind = file.metadata.get("general.type", "model")
    if kind != "model":
        raise CheckpointError(f"{file.path}: general.type={kind!r} is no whole model")
    if name not in LAYOUTS:
        message = unknown_name("supported GGUF architecture", name, LAYOUTS)
        raise CheckpointError(f"{file.path}: {message}")
    return LAYOUTS[name]


class Metadata:
    """The metadata of the file's architecture; what nobody asks for is a problem in the end."""

    def __init__(self, file: GGUFFile) -> None:
        self.prefix = f"{file.metadata['general.architecture']}."
        self.problems: list[str] = []
        self._left = {
            key.removeprefix(self.prefix): _plain(value)
            for key, value in file.metadata.items()
            if key.startswith(self.prefix)
        }

    def take(self, key: str, default: Any = None) -> Any:
        """The value of a key, or `default`; it counts as understood."""
        return self._left.pop(key, default)

    def require(self, holds: bool, problem: str) -> None:
        """Note `problem`, with the architecture before it, unless it holds."""
        if not holds:
            self.problems.append(f"{self.prefix}{problem}")

    def finish(self, path: Path) -> None:
        """Raise CheckpointError with every problem, and every key that was not taken."""
        for key, value in self._left.items():
            neutral = key in NEUTRAL and NEUTRAL[key] == value
            self.require(neutral, f"{key}={value!r} is not understood")
        if self.problems:
            raise CheckpointError(f"{path}: {'; '.join(self.problems)}")


def config_of(file: GGUFFile, rope_factors: Callable[[], Sequence[float]]) -> dict[str, Any]:
    """The config.json of the model, without its end tokens.

    `rope_factors` reads the tensor rope_freqs, where there is one. Raises CheckpointError with
    everything that is missing, wrong, or not understood.
    """
    layout, metadata = layout_of(file), Metadata(file)
    config: dict[str, Any] = {
        "architectures": [layout.architecture],
        "model_type": layout.model_type,
        **layout.fixed,
        "tie_word_embeddings": "output.weight" not in file.tensors,
        "torch_dtype": _dtype(file),
    }
    for key, to in {**FIELDS, **layout.fields}.items():
        value = metadata.take(key)
        metadata.require(value is not None or key in OPTIONAL, f"{key} is missing")
        if value is not None:
            config[to] = value
    if "token_embd.weight" in file.tensors:
        config.setdefault("vocab_size", file.tensors["token_embd.weight"].shape[0])
    if layout.windowed and (window := metadata.take("attention.sliding_window")) is not None:
        kind = layout.windowed.removesuffix("ForCausalLM").lower()
        config |= {"architectures": [layout.windowed], "model_type": kind, "sliding_window": window}
    config |= _biases(file)
    config["head_dim"] = head_dim = _head_dim(config, metadata)
    if layout.wide_scale is not None:
        wide = config.get("num_hidden_layers") == layout.wide_scale
        heads = config.get("num_attention_heads") or 1
        scalar = config.get("hidden_size", 0) / heads if wide else head_dim
        config["query_pre_attn_scalar"] = scalar
    config["rope_scaling"] = _rope_scaling(metadata)
    if ROPE_FREQS in file.tensors:
        metadata.require(config["rope_scaling"] is None, f"rope.scaling.type beside {ROPE_FREQS}")
        factors = rope_factors()
        metadata.require(2 * len(factors) == head_dim, f"{ROPE_FREQS} has {len(factors)} factors")
        config["rope_scaling"] = _llama3_scaling(factors, config.get("rope_theta"), metadata)
    layers = config.get("num_hidden_layers")
    too_many = isinstance(layers, int) and layers > len(file.tensors)
    metadata.require(not too_many, f"block_count={layers!r}, but {len(file.tensors)} tensors")
    metadata.finish(file.path)
    return config


def _plain(value: Any) -> Any:
    """One number where a list says it for every layer; the shortest decimal of an fp32 number."""
    if isinstance(value, list) and value and all(item == value[0] for item in value):
        value = value[0]
    return float(str(numpy.float32(value))) if isinstance(value, float) else value


def _dtype(file: GGUFFile) -> str:
    """The type of all matrices; bfloat16 for quantised ones, whose first type nobody wrote down."""
    kinds = {tensor.kind for tensor in file.tensors.values() if len(tensor.shape) > 1}
    return FLOATS.get(kinds.pop(), "bfloat16") if len(kinds) == 1 else "bfloat16"


def _biases(file: GGUFFile) -> dict[str, bool]:
    """What config.json of the Llama classes says about biases that are stored."""
    stored = {"attention_bias": "attn_output", "mlp_bias": "ffn_down"}
    return {key: True for key, name in stored.items() if f"blk.0.{name}.bias" in file.tensors}


def _head_dim(config: Mapping[str, Any], metadata: Metadata) -> Any:
    """The size of a head. Values must be as long as keys, and heads rotated as a whole."""
    heads, hidden = config.get("num_attention_heads"), config.get("hidden_size")
    size = config.get("head_dim")
    if size is None and isinstance(heads, int) and isinstance(hidden, int) and heads > 0:
        size = hidden // heads
    for key in ("attention.value_length", "rope.dimension_count"):
        stated = metadata.take(key, size)
        metadata.require(stated == size, f"{key}={stated!r} is not the head size {size}")
    return size


def _rope_scaling(metadata: Metadata) -> dict[str, Any] | None:
    """config.json's rope_scaling from `rope.scaling.*`, or from the older `rope.scale_linear`."""
    metadata.take("rope.scaling.finetuned")
    older = metadata.take("rope.scale_linear")
    kind = metadata.take("rope.scaling.type", "linear" if older is not None else "none")
    if kind == "none":
        return None
    metadata.require(kind in ("linear", "yarn"), f"rope.scaling.type={kind!r} is not understood")
    factor = metadata.take("rope.scaling.factor", older)
    metadata.require(factor is not None, "rope.scaling.factor is missing")
    scaling = {"rope_type": kind, "factor": factor}
    original = metadata.take("rope.scaling.original_context_length")
    if kind == "yarn":
        metadata.require(original is not None, "rope.scaling.original_context_length is missing")
        scaling["original_max_position_embeddings"] = original
        for name in ("beta_fast", "beta_slow"):
            if (stated := metadata.take(f"rope.scaling.yarn_{name}")) is not None:
                scaling[name] = stated
        for name in ("attn_factor", "yarn_attn_factor", "yarn_ext_factor"):
            # converters and llama.cpp disagree on whether the first contains yarn's own factor
            stated = metadata.take(f"rope.scaling.{name}", 1.0)
            metadata.require(stated == 1.0, f"rope.scaling.{name}={stated!r} is not 1")
    return scaling


def _llama3_scaling(
    factors: Sequence[float], theta: float | None, metadata: Metadata
) -> dict[str, Any]:
    """The parameters of Llama 3's scheme that give these divisors of the rates.

    The file holds only the divisors; every Llama 3 has the same parameters but for the factor,
    which is the largest of them. Others are refused.
    """
    scaling = {"rope_type": "llama3", "factor": round(max(factors), 4), **LLAMA3}
    rates, plain = (
        rope_rates(
            read_rope({"rope_theta": theta, "rope_scaling": parameters}, LLAMA3_POSITIONS),
            2 * len(factors),
            torch.float64,
        )
        for parameters in (scaling, None)
    )
    same = all(
        math.isclose(stated, expected, rel_tol=FACTOR_TOLERANCE)
        for stated, expected in zip(factors, (plain / rates).tolist(), strict=True)
    )
    metadata.require(same, f"rope: the factors in {ROPE_FREQS} are not those of Llama 3's scheme")
    return scaling
