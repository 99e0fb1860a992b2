"""A random EAGLE head in the layout of published checkpoints, for tests."""

import json
from pathlib import Path

import torch


def write_tiny_eagle(directory: Path, model: Path, seed: int = 0) -> Path:
    """Write a one-layer head for the model directory `model`; returns `directory`."""
    from safetensors.torch import save_file

    target = json.loads((model / "config.json").read_text())
    hidden, inner = target["hidden_size"], 48
    heads, kv_heads, head_dim = 4, 2, hidden // 4
    directory.mkdir(parents=True, exist_ok=True)
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": target["vocab_size"],
        "hidden_size": hidden,
        "intermediate_size": inner,
        "num_hidden_layers": 1,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": head_dim,
        "max_position_embeddings": target["max_position_embeddings"],
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "hidden_act": "silu",
        "bias": False,
    }
    (directory / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    shapes = {
        "fc.weight": (hidden, 2 * hidden),
        "layers.0.self_attn.q_proj.weight": (heads * head_dim, hidden),
        "layers.0.self_attn.k_proj.weight": (kv_heads * head_dim, hidden),
        "layers.0.self_attn.v_proj.weight": (kv_heads * head_dim, hidden),
        "layers.0.self_attn.o_proj.weight": (hidden, heads * head_dim),
        "layers.0.mlp.gate_proj.weight": (inner, hidden),
        "layers.0.mlp.up_proj.weight": (inner, hidden),
        "layers.0.mlp.down_proj.weight": (hidden, inner),
        "layers.0.post_attention_layernorm.weight": (hidden,),
    }
    generator = torch.Generator().manual_seed(seed)
    tensors = {
        name: torch.randn(shape, generator=generator) * shape[-1] ** -0.5
        if len(shape) == 2
        else 1 + 0.1 * torch.randn(shape, generator=generator)
        for name, shape in shapes.items()
    }
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
    return directory
