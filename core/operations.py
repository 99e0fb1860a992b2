"""What layers compute with. A family lends drafter heads the operations of its own layers.

Legend: T tokens, E inputs, F outputs, H heads, D head size.
"""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional

Product = Callable[[Tensor], Tensor]
"""x [T, E] -> [T, F]."""


class Operations:
    """By torch; those of a family may be faster where its models are placed."""

    def product(
        self, weight_FE: Tensor, bias_F: Tensor | None = None
    ) -> Callable[[Tensor], Tensor]:
        """x [T, E] -> x @ weight.T + bias. The weight is the product's own from now on."""
        return partial(functional.linear, weight=weight_FE, bias=bias_F)

    def norm(self, x: Tensor, weight_E: Tensor, eps: float) -> Tensor:
        """x / rms(x) * weight over the last axis (arXiv 1910.07467), in the weight's dtype."""
        wide = x.to(weight_E.dtype)
        return functional.rms_norm(wide, weight_E.shape, weight_E, eps).to(x.dtype)

    def swiglu(self, gate_up_TF: Tensor) -> Tensor:
        """silu(gate) * up of the halves of the last axis (arXiv 2002.05202), in fp32 or wider."""
        gate_TF, up_TF = gate_up_TF.chunk(2, dim=-1)
        wide = torch.promote_types(gate_TF.dtype, torch.float32)
        return functional.silu(gate_TF.to(wide)).to(gate_TF.dtype) * up_TF

    def rotate(self, x_THD: Tensor, cos_T1D: Tensor, sin_T1D: Tensor) -> Tensor:
        """Pairs (i, i + D / 2) turned, in the angles' dtype: x cos + (halves of x swapped) sin.

        An angle stands in both halves of `cos` and `sin`, in the first of `sin` negated
        (arXiv 2104.09864).
        """
        swapped_THD = x_THD.roll(x_THD.shape[-1] // 2, -1)
        return (x_THD * cos_T1D + swapped_THD * sin_T1D).to(x_THD.dtype)
