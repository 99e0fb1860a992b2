"""Random heads of every kind for a tiny model, in published layouts, where drafters look for them.

They know nothing, so over a large vocabulary nearly all they draft is refused; over a few tokens
some of it is accepted by chance.
"""

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from interlock.core.model import ModelFamily
from interlock.core.testing.tiny import write_tiny_checkpoint
from interlock.core.testing.tiny_eagle import write_tiny_eagle

Shapes = dict[str, tuple[int, ...]]
INNER, HEADS, KV_HEADS, RANK = 48, 4, 2, 6
LLAMA = {"architectures": ["LlamaForCausalLM"]}
BLOCK = 8
"""Slots of the block heads."""
COUNT = 3
"""Heads of Medusa and of Hydra."""


def write_tiny_heads(model: Path, families: Sequence[ModelFamily], seed: int = 0) -> None:
    """Write a head of every kind below the model directory `model`, and a small draft model."""
    target = json.loads((model / "config.json").read_text())
    vocab, hidden = target["vocab_size"], target["hidden_size"]
    write_tiny_eagle(model / "eagle", model, seed=seed)
    write_tiny_checkpoint(
        model / "draft_model", "gqa", families, seed=seed + 5, vocab_size=vocab,
        max_position_embeddings=target["max_position_embeddings"],
    )  # fmt: skip
    _write(model / "medusa", _medusa(hidden, vocab), {}, seed + 1)
    _write(model / "hydra", _hydra(hidden, vocab), {}, seed + 2)
    config = {**LLAMA, **layer_config(target), "draft_vocab_size": vocab}
    config["eagle_config"] = {"eagle_aux_hidden_state_layer_ids": [1]}
    _write(model / "eagle3", _eagle3(hidden, vocab), config, seed + 3)
    _write(model / "mtp", _mtp(model, target), {**target, "num_nextn_predict_layers": 1}, seed + 4)
    block = {
        **LLAMA, **layer_config(target), "model_type": "qwen3", "num_hidden_layers": 2,
        "block_size": BLOCK, "mask_token_id": vocab - 1, "target_layer_ids": [0],
    }  # fmt: skip
    _write(model / "dflash", _block(hidden), block, seed + 6)
    light = {"markov_rank": RANK, "markov_head_type": "rnn", "enable_confidence_head": True}
    spark = {**_block(hidden), **_light(hidden, vocab)}
    _write(model / "dspark", spark, block | light, seed + 7)


def _write(directory: Path, shapes: Shapes, config: Mapping[str, Any], seed: int) -> None:
    from safetensors.torch import save_file

    generator = torch.Generator().manual_seed(seed)
    tensors = {name: _random(name, shape, generator) for name, shape in shapes.items()}
    directory.mkdir(parents=True, exist_ok=True)
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
    (directory / "config.json").write_text(json.dumps(config, indent=2) + "\n")


def _random(name: str, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """Matrices keep the size of what they multiply, norms are near 1, biases near 0."""
    draw = torch.randn(shape, generator=generator)
    if len(shape) > 1:
        return draw * (1.4 / math.sqrt(shape[-1]))
    return 0.1 * draw + (0.0 if name.endswith("bias") else 1.0)


def layer_config(target: Mapping[str, Any], hidden: int | None = None) -> dict[str, Any]:
    """The config of a head's one Llama layer, of the target's width unless `hidden` is given."""
    hidden = hidden or target["hidden_size"]
    return {
        "model_type": "llama",
        "vocab_size": target["vocab_size"],
        "hidden_size": hidden,
        "intermediate_size": INNER,
        "num_hidden_layers": 1,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": hidden // HEADS,
        "max_position_embeddings": target["max_position_embeddings"],
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "hidden_act": "silu",
        "attention_bias": False,
    }


def _layer(under: str, hidden: int, width: int) -> Shapes:
    """Of a Llama layer whose attention reads `width` numbers."""
    kv_width = KV_HEADS * hidden // HEADS
    return {
        f"{under}.input_layernorm.weight": (hidden,),
        f"{under}.post_attention_layernorm.weight": (hidden,),
        f"{under}.self_attn.q_proj.weight": (hidden, width),
        f"{under}.self_attn.k_proj.weight": (kv_width, width),
        f"{under}.self_attn.v_proj.weight": (kv_width, width),
        f"{under}.self_attn.o_proj.weight": (hidden, hidden),
        f"{under}.mlp.gate_proj.weight": (INNER, hidden),
        f"{under}.mlp.up_proj.weight": (INNER, hidden),
        f"{under}.mlp.down_proj.weight": (hidden, INNER),
    }


def _medusa(hidden: int, vocab: int) -> Shapes:
    shapes: Shapes = {}
    for k in range(COUNT):
        shapes[f"medusa_head.{k}.0.linear.weight"] = (hidden, hidden)
        shapes[f"medusa_head.{k}.0.linear.bias"] = (hidden,)
        shapes[f"medusa_head.{k}.1.weight"] = (vocab, hidden)
    return shapes


def _hydra(hidden: int, vocab: int) -> Shapes:
    shapes: Shapes = {}
    for k in range(COUNT):
        for part in ("linear", "res_connection"):
            shapes[f"hydra_mlp.{k}.0.{part}.weight"] = (hidden, hidden * (k + 2))
            shapes[f"hydra_mlp.{k}.0.{part}.bias"] = (hidden,)
        shapes[f"hydra_lm_head.{k}.weight"] = (vocab, hidden)
    return shapes


def _eagle3(hidden: int, vocab: int) -> Shapes:
    return {
        "fc.weight": (hidden, hidden),
        **_layer("midlayer", hidden, 2 * hidden),
        "midlayer.hidden_norm.weight": (hidden,),
        "norm.weight": (hidden,),
        "lm_head.weight": (vocab, hidden),
    }


def _mtp(model: Path, target: Mapping[str, Any]) -> Shapes:
    """A layer like the target's last one."""
    from safetensors import safe_open

    hidden, number = target["hidden_size"], target["num_hidden_layers"]
    last, own = f"model.layers.{number - 1}.", f"model.layers.{number}."
    with safe_open(model / "model.safetensors", "pt") as stored:
        shapes: Shapes = {
            own + name.removeprefix(last): tuple(stored.get_slice(name).get_shape())
            for name in stored.keys()
            if name.startswith(last)
        }
    around = {"enorm": (hidden,), "hnorm": (hidden,), "eh_proj": (hidden, 2 * hidden)}
    around["shared_head.norm"] = (hidden,)
    return shapes | {f"{own}{name}.weight": shape for name, shape in around.items()}


def _block(hidden: int) -> Shapes:
    shapes: Shapes = {
        "fc.weight": (hidden, hidden), "hidden_norm.weight": (hidden,), "norm.weight": (hidden,)
    }  # fmt: skip
    for layer in range(2):
        shapes |= _layer(f"layers.{layer}", hidden, hidden)
        for norm in ("q_norm", "k_norm"):
            shapes[f"layers.{layer}.self_attn.{norm}.weight"] = (hidden // HEADS,)
    return shapes


def _light(hidden: int, vocab: int) -> Shapes:
    """A Markov head with a state, and a confidence head."""
    return {
        "markov_head.markov_w1.weight": (vocab, RANK),
        "markov_head.markov_w2.weight": (vocab, RANK),
        "markov_head.joint_proj.weight": (3 * RANK, 2 * RANK + hidden),
        "markov_head.joint_proj.bias": (3 * RANK,),
        "confidence_head.proj.weight": (1, hidden + RANK),
        "confidence_head.proj.bias": (1,),
    }
