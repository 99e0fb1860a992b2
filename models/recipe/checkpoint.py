"""Read and write the recipe's networks as Hugging Face checkpoints."""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from interlock.models.recipe.network import MAX_POSITIONS, Decoder, Shape


def model_config(shape: Shape) -> dict[str, Any]:
    """The config.json of a decoder: Llama's fields for gqa, DeepSeek-V3's (all dense) for mla."""
    config: dict[str, Any] = {
        "vocab_size": shape.vocab_size,
        "hidden_size": shape.hidden,
        "intermediate_size": shape.intermediate,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "max_position_embeddings": MAX_POSITIONS,
        "rms_norm_eps": shape.norm_eps,
        "rope_theta": shape.rope_theta,
        "hidden_act": "silu",
        "tie_word_embeddings": True,
        "attention_bias": False,
        "bos_token_id": 0,
        "eos_token_id": 0,
        "torch_dtype": "bfloat16",
    }
    if shape.attention == "gqa":
        return {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            **config,
            "num_key_value_heads": shape.kv_heads,
            "head_dim": shape.head_dim,
            "mlp_bias": False,
        }
    return {
        "architectures": ["DeepseekV3ForCausalLM"],
        "model_type": "deepseek_v3",
        **config,
        "num_key_value_heads": shape.heads,
        "q_lora_rank": None,
        "kv_lora_rank": shape.kv_lora_rank,
        "qk_nope_head_dim": shape.nope_dim,
        "qk_rope_head_dim": shape.rope_dim,
        "v_head_dim": shape.head_dim,
        "rope_interleave": True,
        "first_k_dense_replace": shape.layers,
        "moe_intermediate_size": shape.intermediate,
        "n_routed_experts": 2,
        "n_shared_experts": 1,
        "num_experts_per_tok": 1,
        "n_group": 1,
        "topk_group": 1,
        "norm_topk_prob": True,
        "routed_scaling_factor": 1.0,
    }


def save_decoder(model: Decoder, folder: Path) -> None:
    """Write config.json, generation_config.json and model.safetensors (bf16)."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(model_config(model.shape), indent=2) + "\n")
    generation = {"bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0}
    (folder / "generation_config.json").write_text(json.dumps(generation, indent=2) + "\n")
    tensors = {
        f"model.{name}": weight.detach().to(torch.bfloat16).contiguous()
        for name, weight in model.state_dict().items()
    }
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def load_decoder(folder: Path) -> Decoder:
    """A decoder that `save_decoder` wrote, in fp32.

    Raises:
        FileNotFoundError: config.json or model.safetensors is missing.
        RuntimeError: tensors do not match the config.
    """
    config = json.loads((folder / "config.json").read_text())
    shared = Shape(
        attention="gqa" if config["model_type"] == "llama" else "mla",
        vocab_size=config["vocab_size"],
        hidden=config["hidden_size"],
        intermediate=config["intermediate_size"],
        layers=config["num_hidden_layers"],
        heads=config["num_attention_heads"],
        kv_heads=config["num_key_value_heads"],
        head_dim=config.get("head_dim") or config["v_head_dim"],
        kv_lora_rank=config.get("kv_lora_rank", Shape.kv_lora_rank),
        nope_dim=config.get("qk_nope_head_dim", Shape.nope_dim),
        rope_dim=config.get("qk_rope_head_dim", Shape.rope_dim),
        norm_eps=config["rms_norm_eps"],
        rope_theta=config["rope_theta"],
    )
    model = Decoder(shared)
    tensors = load_file(folder / "model.safetensors")
    model.load_state_dict({name.removeprefix("model."): t.float() for name, t in tensors.items()})
    return model
