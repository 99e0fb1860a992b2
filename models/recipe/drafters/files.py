"""Writes a head's config.json and model.safetensors."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from interlock.models.recipe.drafters.facts import TargetFacts


def layer_config(target: TargetFacts, intermediate: int, layers: int = 1) -> dict[str, Any]:
    """The Llama fields of a head's config: `layers` layers of the target's width and heads."""
    return {
        "num_hidden_layers": layers,
        "vocab_size": target.vocab_size,
        "hidden_size": target.hidden,
        "intermediate_size": intermediate,
        "num_attention_heads": target.heads,
        "num_key_value_heads": target.kv_heads,
        "head_dim": target.head_dim,
        "hidden_act": "silu",
        "rms_norm_eps": target.norm_eps,
        "rope_theta": target.rope_theta,
        "max_position_embeddings": target.max_positions,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
    }


def write_head(folder: Path, config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
    """Floating tensors are stored in bf16, others as they are."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    stored = {
        name: (x.detach().to(torch.bfloat16) if x.is_floating_point() else x).contiguous()
        for name, x in tensors.items()
    }
    save_file(stored, folder / "model.safetensors", metadata={"format": "pt"})
