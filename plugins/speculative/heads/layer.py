"""One Llama-style layer of a head; attention and its cache belong to the caller.

Norms, rotary angles and the gate keep at least fp32 and never less than the weights' dtype.
Legend: T tokens, I width of the projections' input, E hidden size, H query heads, K key/value
heads, D head size, R rotated pairs.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from interlock.core.model import Attend, HeadsInput
from interlock.core.weights import WeightSource
from interlock.plugins.speculative.heads.fields import LayerShape


class Taker:
    """Takes tensors of a checkpoint under one prefix, in one dtype on one device."""

    def __init__(
        self, weights: WeightSource, dtype: torch.dtype, device: torch.device, prefix: str = ""
    ) -> None:
        self.weights, self.dtype, self.device, self.prefix = weights, dtype, device, prefix

    def under(self, prefix: str) -> "Taker":
        """The same source, further down."""
        return Taker(self.weights, self.dtype, self.device, self.prefix + prefix)

    def take(self, name: str, *size: int) -> Tensor:
        """`name`.weight, which must have this size; what is wrong is told by `weights.finish`."""
        return self.weights.take(f"{self.prefix}{name}.weight", size, self.dtype, self.device)

    def optional(self, name: str, *size: int) -> Tensor | None:
        """`name`.weight if it is stored."""
        return self.take(name, *size) if self.weights.has(f"{self.prefix}{name}.weight") else None

    def bias(self, name: str, size: int) -> Tensor | None:
        """`name`.bias if it is stored."""
        full = f"{self.prefix}{name}.bias"
        if not self.weights.has(full):
            return None
        return self.weights.take(full, (size,), self.dtype, self.device)


class Layer:
    """q/k/v/o projections with rotary positions, then a gated MLP after its norm.

    `number` is the layer that its cache rows are stored under. What stands before the projections
    (norms, concatenation) is the caller's; they read `width` inputs (None: the hidden size).
    Biases of q, k and v and norms of their heads (Qwen) are used where they are stored.
    """

    def __init__(
        self, shape: LayerShape, number: int, source: Taker, width: int | None = None
    ) -> None:
        self.shape, self.spec, self.number = shape, shape.spec, number
        inputs, s, attention = width or shape.hidden, shape, source.under("self_attn.")
        sizes = {"q": s.heads * s.head_dim, "k": s.kv_heads * s.head_dim}
        sizes["v"] = sizes["k"]
        self._weights = {n: attention.take(f"{n}_proj", size, inputs) for n, size in sizes.items()}
        self._biases = {n: attention.bias(f"{n}_proj", size) for n, size in sizes.items()}
        self._head_norms = {n: attention.optional(f"{n}_norm", s.head_dim) for n in "qk"}
        self.o_proj = attention.take("o_proj", s.hidden, sizes["q"])
        self.norm = source.take("post_attention_layernorm", s.hidden)
        self.gate_proj = source.take("mlp.gate_proj", s.intermediate, s.hidden)
        self.up_proj = source.take("mlp.up_proj", s.intermediate, s.hidden)
        self.down_proj = source.take("mlp.down_proj", s.hidden, s.intermediate)
        wide = torch.promote_types(source.dtype, torch.float32)
        self.rates_R = torch.tensor(s.rates, dtype=torch.float64, device=source.device).to(wide)

    def forward(
        self, x_TI: Tensor, residual_TE: Tensor, positions_T: Tensor, attend: Attend
    ) -> Tensor:
        """[T, E]: residual + attention over x, then that + the MLP of its norm."""
        q_THD = self.turned("q", x_TI, positions_T)
        k_TKD = self.turned("k", x_TI, positions_T)
        inputs = HeadsInput(q_THD, k_TKD, self.heads("v", x_TI))
        return self.close(residual_TE, attend(self.number, self.spec, inputs))

    def turned(self, name: str, x_TI: Tensor, positions_T: Tensor) -> Tensor:
        """Heads [T, heads, D] of projection "q" or "k", normed where the head says so, rotated."""
        x_THD, norm = self.heads(name, x_TI), self._head_norms[name]
        if norm is not None:
            x_THD = rms_norm(x_THD, norm, self.shape.norm_eps)
        return _rotate(x_THD, positions_T[:, None, None].to(self.rates_R.dtype) * self.rates_R)

    def heads(self, name: str, x_TI: Tensor) -> Tensor:
        """Heads [T, heads, D] of projection "q", "k" or "v"."""
        projected = F.linear(x_TI, self._weights[name], self._biases[name])
        return projected.view(len(x_TI), -1, self.shape.head_dim)

    def close(self, residual_TE: Tensor, attended_THD: Tensor) -> Tensor:
        """[T, E]: what follows attention in the layer."""
        dtype = self.o_proj.dtype
        x_TE = residual_TE + F.linear(attended_THD.to(dtype).flatten(1), self.o_proj)
        normed_TE = rms_norm(x_TE, self.norm, self.shape.norm_eps)
        gate = F.linear(normed_TE, self.gate_proj)
        wide = torch.promote_types(dtype, torch.float32)
        gated = F.silu(gate.to(wide)).to(dtype) * F.linear(normed_TE, self.up_proj)
        return x_TE + F.linear(gated, self.down_proj)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x / rms(x) * weight over the last axis (arXiv 1910.07467)."""
    wide = torch.promote_types(x.dtype, torch.float32)
    y = x.to(wide)
    y = y * torch.rsqrt(y.square().mean(-1, keepdim=True) + eps)
    return (weight.to(wide) * y).to(x.dtype)


def _rotate(x_THD: Tensor, angles_T1R: Tensor) -> Tensor:
    """Rotary embedding over pairs (i, i + D/2) (arXiv 2104.09864), in the angles' dtype."""
    first, second = x_THD.to(angles_T1R.dtype).chunk(2, dim=-1)
    cos, sin = angles_T1R.cos(), angles_T1R.sin()
    turned = torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)
    return turned.to(x_THD.dtype)
