"""The parts that decoders are made of, and the loader that fills them from named tensors.

Legend: T tokens, E hidden size, F size inside an MLP.
"""

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn import functional

from interlock.core.weights import WeightSource


class RMSNorm:
    """x / rms(x) * weight, computed in fp32 or the wider model dtype (arXiv 1910.07467)."""

    def __init__(self, weight: Tensor, eps: float) -> None:
        self.weight = weight
        self.eps = eps

    def __call__(self, x: Tensor) -> Tensor:
        """Same shape and dtype as `x`, normalised over the last axis."""
        wide = x.to(self.weight.dtype)
        return functional.rms_norm(wide, self.weight.shape, self.weight, self.eps).to(x.dtype)


class Linear:
    """x @ weight.T + bias; weight is [outputs, inputs]."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self.weight = weight
        self.bias = bias

    def __call__(self, x: Tensor) -> Tensor:
        """[..., inputs] -> [..., outputs]."""
        return functional.linear(x, self.weight, self.bias)


class Loader:
    """Takes parameters in the model's dtype; norms and routers in `wide` (at least fp32)."""

    def __init__(self, weights: WeightSource, dtype: torch.dtype, device: torch.device) -> None:
        self.weights = weights
        self.dtype = dtype
        self.device = device
        self.wide = torch.promote_types(dtype, torch.float32)

    def norm(self, prefix: str, size: int, eps: float) -> RMSNorm:
        """The norm whose weight is `prefix`.weight."""
        return RMSNorm(self.wide_tensor(f"{prefix}.weight", (size,)), eps)

    def wide_tensor(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """A tensor in at least fp32."""
        return self.weights.take(name, shape, self.wide, self.device)

    def tensor(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """A tensor in the model's dtype."""
        return self.weights.take(name, shape, self.dtype, self.device)

    def rows(self, name: str, at_least: int, columns: int) -> Tensor:
        """[at_least, columns]: a table whose stored rows beyond `at_least` are padding, cut off."""
        stored = self.weights.shape(name)
        padded = stored is not None and len(stored) == 2 and stored[0] > at_least
        rows = stored[0] if stored and padded else at_least
        return self.tensor(name, (rows, columns))[:at_least]

    def linear(self, outputs: Mapping[str, int], inputs: int, biased: bool) -> Linear:
        """One layer from those named, stacked in order: prefix -> number of outputs.

        A bias that is stored is used even if the config does not speak of one; `biased` makes it
        required.
        """
        weight = torch.cat(
            [self.tensor(f"{name}.weight", (rows, inputs)) for name, rows in outputs.items()]
        )
        named = {name: biased or self.weights.has(f"{name}.bias") for name in outputs}
        if not any(named.values()):
            return Linear(weight, None)
        biases = [
            self.tensor(f"{name}.bias", (rows,)) if named[name] else weight.new_zeros(rows)
            for name, rows in outputs.items()
        ]
        return Linear(weight, torch.cat(biases))


class GatedMLP:
    """down(silu(gate(x)) * up(x)) (arXiv 2002.05202); gate and up are one matrix."""

    def __init__(self, load: Loader, prefix: str, hidden: int, inner: int, biased: bool) -> None:
        halves = {f"{prefix}.gate_proj": inner, f"{prefix}.up_proj": inner}
        self.gate_up = load.linear(halves, hidden, biased)
        self.down = load.linear({f"{prefix}.down_proj": hidden}, inner, biased)

    def __call__(self, x_TE: Tensor) -> Tensor:
        """[T, E] -> [T, E]."""
        gate_TF, up_TF = self.gate_up(x_TE).chunk(2, dim=-1)
        return self.down(functional.silu(gate_TF) * up_TF)
