"""Writes GGUF files with gguf's own writer: tiny models of transformers, and their tokenizers."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np

F32 = gguf.GGMLQuantizationType.F32
ARCHITECTURES = {
    "llama": "llama",
    "mistral": "llama",
    "qwen2": "qwen2",
    "qwen3": "qwen3",
    "qwen2_moe": "qwen2moe",
    "qwen3_moe": "qwen3moe",
    "gemma2": "gemma2",
    "gemma3_text": "gemma3",
}
"""model_type of transformers -> GGUF's name."""


def write_gguf(
    path: Path,
    model: Any,
    kind: gguf.GGMLQuantizationType = F32,
    extra: Mapping[str, Any] | None = None,
    tensors: Mapping[str, np.ndarray] | None = None,
    tokenizer: Mapping[str, Any] | None = None,
    general: Mapping[str, Any] | None = None,
) -> dict[str, np.ndarray]:
    """Write a transformers model as llama.cpp's converter does; matrices are stored as `kind`.

    `extra` are more metadata of the architecture (None: leave out what would be written),
    `tensors` more tensors, `tokenizer` metadata below `tokenizer.`, `general` any. Returns the
    stored values under the model's own names: quantised and dequantised.
    """
    config = model.config
    name = ARCHITECTURES[config.model_type]
    architecture = next(k for k, v in gguf.MODEL_ARCH_NAMES.items() if v == name)
    names = gguf.get_tensor_name_map(architecture, config.num_hidden_layers)
    writer = gguf.GGUFWriter(path, name)
    for key, value in {**metadata_of(config), **(extra or {})}.items():
        if value is not None:
            add(writer, f"{name}.{key}", value)
    for key, value in (tokenizer or {}).items():
        add(writer, f"tokenizer.{key}", value)
    for key, value in (general or {}).items():
        add(writer, key, value)
    stored = {}
    for full, tensor in model.state_dict().items():
        if full == "lm_head.weight" and config.tie_word_embeddings:
            continue
        for part, values in split_experts(full, tensor.numpy().astype(np.float32)).items():
            base, _, suffix = part.rpartition(".")
            values = permuted(part, values, config, name) + norm_offset(base, name)
            used = kind if values.ndim > 1 and "mlp.gate." not in part else F32
            data = gguf.quants.quantize(values, used)
            if "shared_expert_gate" in part:
                data = data[0]  # a vector, as in older files
            writer.add_tensor(f"{names.get_name(base)}.{suffix}", data, raw_dtype=used)
            kept = gguf.quants.dequantize(data, used).reshape(values.shape)
            kept = permuted(part, kept, config, name, back=True) - norm_offset(base, name)
            stored[part] = kept
    for full, values in (tensors or {}).items():
        writer.add_tensor(full, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return stored


def split_experts(full: str, values: np.ndarray) -> dict[str, np.ndarray]:
    """Gate and up projections of all experts apart, as llama.cpp has them."""
    base, _, last = full.rpartition(".")
    if last == "gate_up_proj":
        gate, up = np.split(values, 2, axis=1)
        return {f"{base}.gate_proj.weight": gate, f"{base}.up_proj.weight": up}
    return {f"{full}.weight" if last == "down_proj" else full: values}


def norm_offset(base: str, name: str) -> np.float32:
    """Gemma's norms multiply with 1 + weight; llama.cpp stores the sum."""
    return np.float32(name.startswith("gemma") and base.endswith("norm"))


def metadata_of(config: Any) -> dict[str, Any]:
    """What llama.cpp's converter writes below the architecture's name."""
    rope = config.rope_parameters
    return {
        "block_count": config.num_hidden_layers,
        "context_length": config.max_position_embeddings,
        "embedding_length": config.hidden_size,
        "feed_forward_length": config.intermediate_size,
        "attention.head_count": config.num_attention_heads,
        "attention.head_count_kv": config.num_key_value_heads,
        "attention.layer_norm_rms_epsilon": config.rms_norm_eps,
        "attention.key_length": getattr(config, "head_dim", None),
        "attention.value_length": getattr(config, "head_dim", None),
        "rope.freq_base": float(rope.get("full_attention", rope)["rope_theta"]),
        "vocab_size": config.vocab_size,
    }


def add(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    """One piece of metadata, in the type that converters use."""
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    else:
        writer.add_array(key, value)


def permuted(
    full: str, values: np.ndarray, config: Any, name: str, back: bool = False
) -> np.ndarray:
    """Rows of q and k as GGUF orders them for `llama`, or back from there."""
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    count = next((n for part, n in heads.items() if part in full), None)
    if name != "llama" or count is None:
        return values
    half = values.shape[0] // count // 2
    split = (count, half, 2) if back else (count, 2, half)
    return values.reshape(*split, *values.shape[1:]).swapaxes(1, 2).reshape(values.shape)
