"""Random EAGLE-3 heads in each published layout."""

import json

import torch
from safetensors.torch import save_file

from interlock.core.testing.tiny_heads import HEADS, INNER, KV_HEADS, layer_config


def tensors_of(target, taps=3, draft_vocab=None, seed=0, width=None, **stated):
    """Tensors by SpecForge's names, fp64, for a target's config."""
    hidden, wide = width or target["hidden_size"], target["hidden_size"]
    head_dim = hidden // HEADS
    generator = torch.Generator().manual_seed(seed)

    def matrix(*size):
        draw = torch.randn(size, generator=generator, dtype=torch.float64)
        return draw * size[-1] ** -0.5

    def norm(size=hidden):
        return 1 + 0.1 * torch.randn(size, generator=generator, dtype=torch.float64)

    tensors = {
        "fc.weight": matrix(hidden, taps * wide),
        "midlayer.hidden_norm.weight": norm(),
        "midlayer.input_layernorm.weight": norm(),
        "midlayer.post_attention_layernorm.weight": norm(),
        "midlayer.self_attn.q_proj.weight": matrix(HEADS * head_dim, 2 * hidden),
        "midlayer.self_attn.k_proj.weight": matrix(KV_HEADS * head_dim, 2 * hidden),
        "midlayer.self_attn.v_proj.weight": matrix(KV_HEADS * head_dim, 2 * hidden),
        "midlayer.self_attn.o_proj.weight": matrix(hidden, HEADS * head_dim),
        "midlayer.mlp.gate_proj.weight": matrix(INNER, hidden),
        "midlayer.mlp.up_proj.weight": matrix(INNER, hidden),
        "midlayer.mlp.down_proj.weight": matrix(hidden, INNER),
        "norm.weight": norm(),
        "lm_head.weight": 3 * matrix(draft_vocab or target["vocab_size"], hidden),
    }
    if stated.get("norm_before_fc"):
        tensors["input_norm.weight"] = norm(taps * wide)
    if stated.get("fc_norm"):
        tensors |= {f"fc_norm.{tap}.weight": norm(wide) for tap in range(taps)}
    if width or stated.get("embedding"):
        tensors["embed_tokens.weight"] = matrix(target["vocab_size"], hidden)
    if draft_vocab:
        known = torch.randperm(target["vocab_size"], generator=generator)[:draft_vocab]
        ids = known.sort().values
        tensors["d2t"] = ids - torch.arange(draft_vocab)
        tensors["t2d"] = torch.zeros(target["vocab_size"], dtype=torch.bool)
        tensors["t2d"][ids] = True
    return tensors


def specforge(target, ids, draft_vocab=None, width=None, **stated):
    """A config of SafeAILab's and SpecForge's form; `ids` count tap layers as inputs."""
    return {
        "architectures": ["LlamaForCausalLMEagle3"],
        **layer_config(target, width),
        "draft_vocab_size": draft_vocab or target["vocab_size"],
        "eagle_config": {
            "eagle_aux_hidden_state_layer_ids": list(ids),
            "use_aux_hidden_state": True,
        },
        **stated,
    }


def speculators(target, ids, draft_vocab=None, width=None, **stated):
    """A config of the form that speculators writes and vLLM reads."""
    return {
        "architectures": ["Eagle3Speculator"],
        "speculators_model_type": "eagle3",
        "draft_vocab_size": draft_vocab or target["vocab_size"],
        "target_hidden_size": target["hidden_size"] if width else None,
        "eagle_aux_hidden_state_layer_ids": list(ids),
        "transformer_layer_config": layer_config(target, width),
        "norm_before_residual": False,
        **stated,
    }


def renamed(tensors):
    """The tensors under the names of vLLM and speculators."""
    return {name.replace("midlayer.", "layers.0."): t for name, t in tensors.items()}


def write(directory, config, tensors):
    """A head's directory."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(config))
    save_file({n: t.contiguous() for n, t in tensors.items()}, directory / "model.safetensors")
    return directory


def write_tiny_eagle3(directory, model, ids=(1,), draft_vocab=None, seed=0, **stated):
    """A random head for the model directory `model`, in SpecForge's layout."""
    target = json.loads((model / "config.json").read_text())
    tensors = tensors_of(target, len(ids), draft_vocab, seed, **stated)
    return write(directory, specforge(target, ids, draft_vocab, **stated), tensors)
