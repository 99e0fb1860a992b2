"""One Llama-style layer of a head; attention and its cache belong to the caller.

It computes with the operations of its target's family. Norms, rotary angles and the gate keep at
least fp32 and never less than the weights' dtype. Legend: T tokens, I width of the projections'
input, E hidden size, H query heads, K key/value heads, D head size.
"""

import torch
from torch import Tensor

from interlock.core.component import BuildContext
from interlock.core.model import Attend, HeadsInput
from interlock.core.operations import Operations, Product
from interlock.core.parallel import Placement
from interlock.core.weights import WeightSource
from interlock.plugins.speculative.heads.fields import LayerShape

Rotation = tuple[Tensor, Tensor]
"""cos and sin of positions, [T, 1, D], as `Operations.rotate` takes them."""


class Taker:
    """Takes tensors of a checkpoint under one prefix for an engine: in its dtype, on its device,
    for the operations of its target's family."""

    def __init__(self, weights: WeightSource, context: BuildContext, prefix: str = "") -> None:
        assert context.dtype is not None
        assert context.device is not None
        self.weights, self.prefix, self._context = weights, prefix, context
        self.dtype, self.device = context.dtype, context.device
        self.operations = operations_of(context)

    def under(self, prefix: str) -> "Taker":
        """The same source, further down."""
        return Taker(self.weights, self._context, self.prefix + prefix)

    def take(self, name: str, *size: int) -> Tensor:
        """`name`.weight, which must have this size; what is wrong is told by `weights.finish`."""
        return self.weights.take(f"{self.prefix}{name}.weight", size, self.dtype, self.device)

    def optional(self, name: str, *size: int) -> Tensor | None:
        """`name`.weight if it is stored."""
        return self.take(name, *size) if self.weights.has(f"{self.prefix}{name}.weight") else None

    def bias(self, name: str, size: int, required: bool = False) -> Tensor | None:
        """`name`.bias; None where it is neither stored nor required."""
        full = f"{self.prefix}{name}.bias"
        if not required and not self.weights.has(full):
            return None
        return self.weights.take(full, (size,), self.dtype, self.device)

    def product(self, inputs: int, outputs: dict[str, int], biased: bool = False) -> Product:
        """x [T, inputs] -> those layers' outputs side by side.

        A bias that is stored is added; `biased` makes it required.
        """
        weights = [self.take(name, size, inputs) for name, size in outputs.items()]
        biases = [self.bias(name, size, biased) for name, size in outputs.items()]
        bias_F = None
        if any(bias is not None for bias in biases):
            pairs = zip(weights, biases, strict=True)
            bias_F = torch.cat([w.new_zeros(len(w)) if b is None else b for w, b in pairs])
        weight_FI = weights[0] if len(weights) == 1 else torch.cat(weights)
        return self.operations.product(weight_FI, bias_F)

    def norm(self, name: str, size: int, eps: float) -> Product:
        """The norm over the last axis whose weight is `name`.weight."""
        stored = self.take(name, size)
        weight_E = stored.to(torch.promote_types(self.dtype, torch.float32))
        return lambda x: self.operations.norm(x, weight_E, eps)

    def optional_norm(self, name: str, size: int, eps: float) -> Product | None:
        """The norm if it is stored."""
        stored = self.weights.has(f"{self.prefix}{name}.weight")
        return self.norm(name, size, eps) if stored else None


def operations_of(context: BuildContext) -> Operations:
    """What the target's family lends; torch's where no such family is installed."""
    assert context.dtype is not None
    assert context.device is not None
    family = next((f for f in context.families if f.name == context.model.family), None)
    placement = Placement(context.dtype, context.device, numerics=context.numerics)
    return Operations() if family is None else family.operations(placement)


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
        query, key = s.heads * s.head_dim, s.kv_heads * s.head_dim
        self._query = attention.product(inputs, {"q_proj": query})
        self._key_value = attention.product(inputs, {"k_proj": key, "v_proj": key})
        self._query_norm = attention.optional_norm("q_norm", s.head_dim, s.norm_eps)
        self._key_norm = attention.optional_norm("k_norm", s.head_dim, s.norm_eps)
        self._out = attention.product(query, {"o_proj": s.hidden})
        self._norm = source.norm("post_attention_layernorm", s.hidden, s.norm_eps)
        mlp, inner = source.under("mlp."), s.intermediate
        self._gate_up = mlp.product(s.hidden, {"gate_proj": inner, "up_proj": inner})
        self._down = mlp.product(inner, {"down_proj": s.hidden})
        self._operations, self._dtype = source.operations, source.dtype
        wide = torch.promote_types(source.dtype, torch.float32)
        rates_R = torch.tensor(s.rates, dtype=torch.float64, device=source.device).to(wide)
        self._rates_D = torch.cat((rates_R, rates_R))
        self._signs_D = torch.cat((-torch.ones_like(rates_R), torch.ones_like(rates_R)))

    def rotation(self, positions_T: Tensor) -> Rotation:
        """What turns the heads at these positions, in every layer of this shape."""
        angles_T1D = positions_T[:, None, None] * self._rates_D
        return angles_T1D.cos(), angles_T1D.sin() * self._signs_D

    def forward(
        self,
        x_TI: Tensor,
        residual_TE: Tensor,
        rotation: Rotation,
        attend: Attend,
        wanted_R: Tensor | None = None,
    ) -> Tensor:
        """[T, E]: residual + attention over x, then that + the MLP of its norm.

        Given `wanted_R`, only those rows' [R, E], in that order; all of them are stored.
        """
        if wanted_R is None or len(wanted_R):
            q_THD = self._query(x_TI).view(len(x_TI), -1, self.shape.head_dim)
            q_THD = self._operations.rotate(_normed(self._query_norm, q_THD), *rotation)
        else:  # nobody reads what is attended
            q_THD = x_TI.new_zeros(len(x_TI), self.shape.heads, self.shape.head_dim)
        inputs = HeadsInput(q_THD, *self.keys_values(x_TI, rotation))
        attended_THD = attend(self.number, self.spec, inputs)
        if wanted_R is not None:
            attended_THD, residual_TE = attended_THD[wanted_R], residual_TE[wanted_R]
        if not len(residual_TE):
            return residual_TE
        x_TE = residual_TE + self._out(attended_THD.to(self._dtype).flatten(1))
        gate_up_TF = self._gate_up(self._norm(x_TE))
        return x_TE + self._down(self._operations.swiglu(gate_up_TF))

    def keys_values(self, x_TI: Tensor, rotation: Rotation) -> tuple[Tensor, Tensor]:
        """[T, K, D] each, the keys normed where the head says so, and rotated."""
        kv_TKD = self._key_value(x_TI).view(len(x_TI), -1, self.shape.head_dim)
        k_TKD, v_TKD = kv_TKD.chunk(2, dim=1)
        return self._operations.rotate(_normed(self._key_norm, k_TKD), *rotation), v_TKD


def _normed(norm: Product | None, x_THD: Tensor) -> Tensor:
    """Each head by itself."""
    return x_THD if norm is None else norm(x_THD.reshape(-1, x_THD.shape[-1])).view(x_THD.shape)
