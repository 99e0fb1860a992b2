"""The network of an EAGLE-1 head: fc, then one Llama layer without its first norm.

    x_p = fc(cat[embedding of the token at p + 1, feature of p]);  layer output = feature of p + 1

arXiv 2401.15077, with the tensor names of SafeAILab's checkpoints. Norms, rotary angles and the
gate keep at least fp32 and never less than the model's dtype.
Legend: T tokens, E hidden size, H query heads, K key/value heads, D head size, R rotated pairs.
"""

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from interlock.core.errors import CheckpointError
from interlock.core.model import Attend, AttentionSpec, HeadsInput, ModelDescription
from interlock.core.weights import WeightSource


@dataclass(frozen=True)
class EagleShape:
    """Sizes of a head, from its config.json."""

    vocab_size: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    norm_eps: float
    rope_theta: float
    max_positions: int

    @property
    def spec(self) -> AttentionSpec:
        """Its attention, for a backend."""
        return AttentionSpec(
            form="heads",
            num_heads=self.heads,
            num_kv_heads=self.kv_heads,
            head_dim=self.head_dim,
            v_head_dim=self.head_dim,
            scale=self.head_dim**-0.5,
        )


def read_shape(config: Mapping[str, Any], model: ModelDescription, source: str) -> EagleShape:
    """The head's sizes, checked against the target's.

    Raises CheckpointError with every field that is missing, unsupported, or not the target's.
    """
    problems: list[str] = []

    def integer(key: str, default: int | None = None) -> int:
        value = config.get(key, default)
        if type(value) is not int or value < 1:
            problems.append(f"{key}={value!r} is not an integer >= 1")
            return 1
        return value

    def number(key: str, default: float) -> float:
        value = config.get(key, default)
        if type(value) in (int, float) and 0 < value <= sys.float_info.max:
            return float(value)
        problems.append(f"{key}={value!r} is not a finite number > 0")
        return 1.0

    heads, hidden = integer("num_attention_heads"), integer("hidden_size")
    shape = EagleShape(
        vocab_size=integer("vocab_size"),
        hidden=hidden,
        intermediate=integer("intermediate_size"),
        heads=heads,
        kv_heads=integer("num_key_value_heads", heads),
        head_dim=integer("head_dim", max(1, hidden // heads)),
        norm_eps=number("rms_norm_eps", 1e-6),
        rope_theta=number("rope_theta", 10000.0),
        max_positions=integer("max_position_embeddings", model.max_positions),
    )
    problems += _unsupported(config)
    for key, value, wanted in (
        ("hidden_size", shape.hidden, model.hidden_size),
        ("vocab_size", shape.vocab_size, model.vocab_size),
    ):
        if value != wanted:
            problems.append(f"{key}={value} is not the target's {wanted} ({model.name})")
    if shape.heads % shape.kv_heads or shape.head_dim % 2:
        problems.append(
            f"num_attention_heads={shape.heads}, num_key_value_heads={shape.kv_heads}, "
            f"head_dim={shape.head_dim}: heads must divide and head_dim must be even"
        )
    if problems:
        raise CheckpointError(f"{source}: " + "; ".join(problems))
    return shape


def _unsupported(config: Mapping[str, Any]) -> list[str]:
    """One problem per field whose value would change the arithmetic below."""
    supported = {
        "num_hidden_layers": (1,),
        "hidden_act": ("silu",),
        "rope_scaling": (None,),
        "attention_bias": (False,),
        "mlp_bias": (False,),
    }
    return [
        f"{key}={config[key]!r} is not supported, only {' or '.join(map(repr, allowed))}"
        for key, allowed in supported.items()
        if key in config and config[key] not in allowed
    ]


class EagleNetwork:
    """One pass of the head over new rows; attention and its cache belong to the caller.

    `layer` is the number its cache rows are stored under. Takes every tensor from `weights` once
    and finishes it: missing, misshapen and unexpected tensors are one CheckpointError.
    """

    def __init__(
        self,
        shape: EagleShape,
        layer: int,
        weights: WeightSource,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.shape, self.spec, self.layer = shape, shape.spec, layer

        def take(name: str, *size: int) -> Tensor:
            return weights.take(f"{name}.weight", size, dtype, device)

        s, width, kv_width = shape, shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
        self.fc = take("fc", s.hidden, 2 * s.hidden)
        biased = weights.has("fc.bias")
        self.fc_bias = weights.take("fc.bias", (s.hidden,), dtype, device) if biased else None
        self.q_proj = take("layers.0.self_attn.q_proj", width, s.hidden)
        self.k_proj = take("layers.0.self_attn.k_proj", kv_width, s.hidden)
        self.v_proj = take("layers.0.self_attn.v_proj", kv_width, s.hidden)
        self.o_proj = take("layers.0.self_attn.o_proj", s.hidden, width)
        self.norm = take("layers.0.post_attention_layernorm", s.hidden)
        self.gate_proj = take("layers.0.mlp.gate_proj", s.intermediate, s.hidden)
        self.up_proj = take("layers.0.mlp.up_proj", s.intermediate, s.hidden)
        self.down_proj = take("layers.0.mlp.down_proj", s.hidden, s.intermediate)
        self.embed_tokens: Tensor | None = None
        """The head's own embedding; None: the target's is used."""
        if weights.has("embed_tokens.weight"):
            self.embed_tokens = take("embed_tokens", s.vocab_size, s.hidden)
        weights.finish()
        wide = torch.promote_types(dtype, torch.float32)
        exponents_R = torch.arange(0, s.head_dim, 2, dtype=wide, device=device) / s.head_dim
        self.rates_R = s.rope_theta**-exponents_R

    def forward(
        self, embedded_TE: Tensor, features_TE: Tensor, positions_T: Tensor, attend: Attend
    ) -> Tensor:
        """[T, E]: the estimated feature that follows each row."""
        dtype = self.fc.dtype
        x_TE = torch.cat([embedded_TE.to(dtype), features_TE.to(dtype)], dim=-1)
        x_TE = F.linear(x_TE, self.fc, self.fc_bias)
        angles_T1R = positions_T[:, None, None].to(self.rates_R.dtype) * self.rates_R
        q_THD = _rotate(self._heads(x_TE, self.q_proj), angles_T1R)
        k_TKD = _rotate(self._heads(x_TE, self.k_proj), angles_T1R)
        inputs = HeadsInput(q_THD, k_TKD, self._heads(x_TE, self.v_proj))
        attended_THD = attend(self.layer, self.spec, inputs)
        x_TE = x_TE + F.linear(attended_THD.to(dtype).flatten(1), self.o_proj)
        normed_TE = _rms_norm(x_TE, self.norm, self.shape.norm_eps)
        gate = F.linear(normed_TE, self.gate_proj)
        wide = torch.promote_types(dtype, torch.float32)
        gated = F.silu(gate.to(wide)).to(dtype) * F.linear(normed_TE, self.up_proj)
        return x_TE + F.linear(gated, self.down_proj)

    def _heads(self, x_TE: Tensor, weight: Tensor) -> Tensor:
        return F.linear(x_TE, weight).view(len(x_TE), -1, self.shape.head_dim)


def _rotate(x_THD: Tensor, angles_T1R: Tensor) -> Tensor:
    """Rotary embedding over pairs (i, i + D/2) (arXiv 2104.09864), in the angles' dtype."""
    first, second = x_THD.to(angles_T1R.dtype).chunk(2, dim=-1)
    cos, sin = angles_T1R.cos(), angles_T1R.sin()
    turned = torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)
    return turned.to(x_THD.dtype)


def _rms_norm(x_TE: Tensor, weight_E: Tensor, eps: float) -> Tensor:
    """x / rms(x) * weight (arXiv 1910.07467)."""
    wide = torch.promote_types(x_TE.dtype, torch.float32)
    x = x_TE.to(wide)
    x = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)
    return (weight_E.to(wide) * x).to(x_TE.dtype)
