"""Weights of 8 or 4 bits: how they are rounded, and products that read them as they are.

What a product computes is the product with `weight()`, whatever kernel does it; torch has kernels
for bfloat16 on CPUs, everything else takes the codes apart on the way, some rows at a time. Codes
depend on the stored weights alone, not on the run's dtype: scales are numbers of bfloat16.
Legend: T tokens, E inputs, F outputs, G groups of inputs.
"""

import sys
from abc import abstractmethod
from functools import cache
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

from interlock.core.errors import ConfigError
from interlock.core.parallel import ALONE, Ranks
from interlock.plugins.models.products import Product
from interlock.plugins.models.row_tiles import FAST, Rows

Bits = Literal["int8", "int4"]

GROUP = 32
"""Inputs that share a scale and an offset in 4 bits."""
BLOCK_WEIGHTS = 1 << 18
"""Weights taken apart at once: what they become should stay in a core's cache."""
INT8_KERNEL_TOKENS = 16
"""Tokens up to which torch's kernel beats taking the codes apart (its time grows with each)."""
KERNEL_OUTPUTS = 16
"""The kernels want a multiple of these, and whole groups of inputs."""


class QuantisedProduct(Product):
    """A product with weights of few bits.

    Where `ranks` share each output's inputs, they find its scale together, so that a split model
    has the codes of the whole one. Raises ConfigError where it cannot have them.
    """

    bits: Bits
    nbytes: int
    """Of codes, scales and offsets."""
    squared_error: float
    """Of what was rounded, summed over the matrix; beside it the sum of the squared weights."""
    squared_weight: float
    _kernel_tokens = 0
    """Tokens up to which torch's kernel is called."""

    def __init__(
        self, weight_FE: Tensor, bias_F: Tensor | None = None, rows: Rows = FAST,
        ranks: Ranks = ALONE,
    ) -> None:  # fmt: skip
        self.outputs, self.inputs = weight_FE.shape
        self._dtype, self._rows, self._bias_F = weight_FE.dtype, rows, bias_F
        wide_FE = weight_FE.to(torch.promote_types(weight_FE.dtype, torch.float32))
        self._quantise(wide_FE, ranks)
        lost_FE = self.weight(slice(None), wide_FE.dtype) - wide_FE
        self.squared_error, self.squared_weight = (
            float(x.square().sum(dtype=torch.float64)) for x in (lost_FE, wide_FE)
        )
        whole = self.outputs % KERNEL_OUTPUTS == 0 and self.inputs % GROUP == 0
        suits = (
            rows.numerics == FAST.numerics
            and weight_FE.is_cpu
            and weight_FE.dtype == torch.bfloat16
        )
        if suits and whole and weight_FE.numel() and can_run(self.bits):
            self._use_kernel()

    @abstractmethod
    def _quantise(self, wide_FE: Tensor, ranks: Ranks) -> None:
        """Set codes, scales and `nbytes`."""

    @abstractmethod
    def _use_kernel(self) -> None:
        """Set `_kernel_tokens`, and put the codes into the kernel's order."""

    @abstractmethod
    def _by_kernel(self, x_TE: Tensor) -> Tensor:
        """Torch's kernel, without the bias; for at most `_kernel_tokens` tokens."""

    @abstractmethod
    def weight(self, rows: slice, dtype: torch.dtype) -> Tensor:
        """Those rows of the matrix that the product multiplies by, computed in `dtype` [N, E]."""

    def __call__(self, x_TE: Tensor) -> Tensor:
        """See Product."""
        if len(x_TE) <= self._kernel_tokens:
            y_TF = self._by_kernel(x_TE.contiguous())
        else:
            step = max(KERNEL_OUTPUTS, BLOCK_WEIGHTS // max(1, self.inputs))
            blocks = [slice(at, at + step) for at in range(0, self.outputs, step)]
            parts = [self._rows.linear(x_TE, self.weight(rows, self._dtype)) for rows in blocks]
            y_TF = torch.cat(parts, dim=-1)
        return y_TF if self._bias_F is None else y_TF + self._bias_F


class Int8Product(QuantisedProduct):
    """weight = code * scale, codes from -127 to 127, one scale for each output."""

    bits = "int8"

    def _quantise(self, wide_FE: Tensor, ranks: Ranks) -> None:
        largest_FR = ranks.concat(wide_FE.abs().amax(-1, keepdim=True))
        self._scale_F1 = _scale(largest_FR.amax(-1, keepdim=True) / 127)
        codes_FE = (wide_FE / self._scale_F1).round_().clamp_(-127, 127)
        self._codes_FE = codes_FE.to(torch.int8)
        self.nbytes = self._codes_FE.nbytes + self._scale_F1.nbytes

    def _use_kernel(self) -> None:
        self._kernel_tokens = INT8_KERNEL_TOKENS

    def _by_kernel(self, x_TE: Tensor) -> Tensor:
        return int8_kernel(x_TE, self._codes_FE, self._scale_F1)

    def weight(self, rows: slice, dtype: torch.dtype) -> Tensor:
        """See QuantisedProduct."""
        return self._codes_FE[rows].to(dtype).mul_(self._scale_F1[rows].to(dtype))


class Int4Product(QuantisedProduct):
    """weight = (code - 8) * scale + offset, codes from 0 to 15, for each GROUP of an output."""

    bits = "int4"

    def _quantise(self, wide_FE: Tensor, ranks: Ranks) -> None:
        if ranks.size > 1 and self.inputs % GROUP:
            raise ConfigError(
                f"weights=int4: {ranks.size} ranks have {self.inputs} inputs of a matrix each, no "
                f"whole groups of {GROUP}; set weights=int8 or auto, or use fewer ranks"
            )
        padded_FE = functional.pad(wide_FE, (0, -self.inputs % GROUP))
        wide_FGx = padded_FE.view(self.outputs, -1, GROUP)
        low_FG1, high_FG1 = wide_FGx.aminmax(dim=-1, keepdim=True)
        self._scale_FG1 = _scale((high_FG1 - low_FG1) / 15)
        self._offset_FG1 = (low_FG1 + 8 * self._scale_FG1).to(torch.bfloat16)
        steps_FGx = (wide_FGx - self._offset_FG1) / self._scale_FG1
        codes_FX = (steps_FGx.round_() + 8).clamp_(0, 15).flatten(1).to(torch.uint8)
        self._codes_FX = codes_FX[:, 0::2] | codes_FX[:, 1::2] << 4
        self.nbytes = self._codes_FX.nbytes + self._scale_FG1.nbytes + self._offset_FG1.nbytes

    def _use_kernel(self) -> None:
        self._packed = pack_int4(_nibbles(self._codes_FX))
        factors_FG2 = torch.cat((self._scale_FG1, self._offset_FG1), dim=-1)
        self._factors_GF2 = factors_FG2.transpose(0, 1).contiguous()
        del self._codes_FX, self._scale_FG1, self._offset_FG1
        self._kernel_tokens = sys.maxsize

    def _by_kernel(self, x_TE: Tensor) -> Tensor:
        return int4_kernel(x_TE, self._packed, self._factors_GF2)

    def weight(self, rows: slice, dtype: torch.dtype) -> Tensor:
        """See QuantisedProduct; not after the codes are in the kernel's order."""
        codes_FX = _nibbles(self._codes_FX[rows])
        steps_FGx = codes_FX.to(dtype).sub_(8).view(len(codes_FX), -1, GROUP)
        scale_FG1, offset_FG1 = (x[rows].to(dtype) for x in (self._scale_FG1, self._offset_FG1))
        return steps_FGx.mul_(scale_FG1).add_(offset_FG1).flatten(1)[:, : self.inputs]


QUANTISED: dict[str, type[Int8Product | Int4Product]] = {"int8": Int8Product, "int4": Int4Product}
"""The settings `weights` that quantise, and what then multiplies."""


def _scale(step: Tensor) -> Tensor:
    """In bfloat16, which kernels read; 1 where there is nothing to scale, or nothing finite."""
    rounded = step.to(torch.bfloat16)
    return torch.where((rounded > 0) & rounded.isfinite(), rounded, 1.0).to(torch.bfloat16)


def _nibbles(codes_FX: Tensor) -> Tensor:
    """Two codes a byte, the first in its lower half, as one code a byte."""
    return torch.stack((codes_FX & 15, codes_FX >> 4), dim=-1).flatten(1)


def int8_kernel(x_TE: Tensor, codes_FE: Tensor, scale_F1: Tensor) -> Tensor:
    """x @ (codes * scale).T in bfloat16."""
    y_TF: Tensor = torch.ops.aten._weight_int8pack_mm.default(x_TE, codes_FE, scale_F1[:, 0])
    return y_TF


def pack_int4(codes_FE: Tensor) -> Tensor:
    """The codes in the kernel's own order, which depends on the processor."""
    packed: Tensor = torch.ops.aten._convert_weight_to_int4pack_for_cpu.default(codes_FE.int(), 1)
    return packed


def int4_kernel(x_TE: Tensor, packed: Tensor, factors_GF2: Tensor) -> Tensor:
    """x @ ((codes - 8) * scale + offset).T in bfloat16; factors are (scale, offset)."""
    multiply = torch.ops.aten._weight_int4pack_mm_for_cpu.default
    y_TF: Tensor = multiply(x_TE, packed, GROUP, factors_GF2)
    return y_TF


@cache
def can_run(bits: Bits) -> bool:
    """Whether torch has its kernel for bfloat16 on this processor, and it is right.

    The operators are not promised to stay as they are: False where they changed.
    """
    outputs, inputs = 3 * KERNEL_OUTPUTS, 2 * GROUP
    at_FE = torch.arange(outputs * inputs).view(outputs, inputs)
    x_TE = (torch.arange(3 * inputs).view(3, inputs) % 7 - 3).bfloat16()
    scale_F1 = (1 + torch.arange(outputs) % 2)[:, None].bfloat16()
    try:
        if bits == "int8":
            codes_FE = (at_FE * 11 % 255 - 127).to(torch.int8)
            weight_FE, y_TF = codes_FE * scale_F1.double(), int8_kernel(x_TE, codes_FE, scale_F1)
        else:
            codes_FE = (at_FE * 5 % 16).to(torch.uint8)
            weight_FE = (codes_FE.double() - 8) * scale_F1 + 3
            factors_F2 = torch.cat((scale_F1, torch.full_like(scale_F1, 3)), dim=-1)
            y_TF = int4_kernel(x_TE, pack_int4(codes_FE), factors_F2.expand(2, -1, -1).contiguous())
    except (AttributeError, NotImplementedError, RuntimeError, TypeError):
        return False
    wanted_TF = x_TE.double() @ weight_FE.T
    bound = 4 * torch.finfo(torch.bfloat16).eps * float(wanted_TF.abs().max())
    return bool((y_TF.double() - wanted_TF).abs().max() <= bound)
