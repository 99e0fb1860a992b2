"""A layer's product with its weights, in the form that suits this machine.

On a CPU, oneDNN multiplies by weights that were put into its own blocked order about twice as fast
as by plain rows, from one token to a long prompt. Packed weights replace the plain ones: they take
no more memory, but only a product can read them.
Legend: T tokens, E inputs, F outputs.
"""

from abc import ABC, abstractmethod
from functools import cache

import torch
from torch import Tensor

from interlock.plugins.models.native.few_rows import FewRowsProduct, reads_packed
from interlock.plugins.models.row_tiles import FAST, Rows


class Product(ABC):
    """x @ weight.T + bias for one weight matrix [F, E], which it owns."""

    @abstractmethod
    def __call__(self, x_TE: Tensor) -> Tensor:
        """[T, E] -> [T, F] in the dtype of x."""


class PlainProduct(Product):
    """By rows as torch keeps them, in the way that the setting `numerics` asks for."""

    def __init__(self, weight_FE: Tensor, bias_F: Tensor | None, rows: Rows) -> None:
        self._weight_FE, self._bias_F, self._rows = weight_FE, bias_F, rows

    def __call__(self, x_TE: Tensor) -> Tensor:
        """See Product."""
        return self._rows.linear(x_TE, self._weight_FE, self._bias_F)


class PackedProduct(Product):
    """By weights in oneDNN's order; sums in fp32, as torch's own product of the same dtype.

    Uses operators that torch has for its compiler and does not promise to keep: see `can_pack`.
    `few` multiplies few rows by the same packed weights, faster than oneDNN; None: it cannot here.
    """

    def __init__(self, weight_FE: Tensor, bias_F: Tensor | None) -> None:
        self._packed = torch.ops.mkldnn._reorder_linear_weight(weight_FE)
        self._bias_F = bias_F
        self._multiply = torch.ops.mkldnn._linear_pointwise.default
        self.few: FewRowsProduct | None = None
        if reads_packed(self._packed, weight_FE):
            outputs, inputs = weight_FE.shape
            self.few = FewRowsProduct(self._packed, (outputs, inputs), bias_F)

    def __call__(self, x_TE: Tensor) -> Tensor:
        """See Product."""
        if self.few is not None and self.few.takes(x_TE):
            return self.few(x_TE)
        y_TF: Tensor = self._multiply(x_TE, self._packed, self._bias_F, "none", [], "")
        return y_TF


def make_product(weight_FE: Tensor, bias_F: Tensor | None = None, rows: Rows = FAST) -> Product:
    """The fastest product that keeps to `rows`: packed where this machine can, else plain."""
    packs = rows.numerics == FAST.numerics and weight_FE.is_cpu and weight_FE.numel() > 0
    if packs and can_pack(weight_FE.dtype):
        return PackedProduct(weight_FE, bias_F)
    return PlainProduct(weight_FE, bias_F, rows)


@cache
def can_pack(dtype: torch.dtype) -> bool:
    """Whether torch has oneDNN's packed products of this dtype here, and they are right.

    False in fp64, for which oneDNN has none, on processors without the dtype's instructions, and
    with a torch whose operators have other names or arguments.
    """
    if dtype not in (torch.float32, torch.bfloat16, torch.float16):
        return False
    x_TE, weight_FE = (torch.arange(n * 32.0).view(n, 32).to(dtype) % 7 for n in (3, 48))
    bias_F = torch.arange(48.0).to(dtype)
    try:
        with torch.inference_mode():
            y_TF = PackedProduct(weight_FE, bias_F)(x_TE)
    except (AttributeError, NotImplementedError, RuntimeError, TypeError):
        return False
    wanted_TF = x_TE.double() @ weight_FE.double().T + bias_F.double()
    bound = 4 * torch.finfo(dtype).eps * float(wanted_TF.abs().max())  # whole numbers: one rounding
    return bool((y_TF.double() - wanted_TF).abs().max() <= bound)
