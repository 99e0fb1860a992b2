"""Products of few rows with weights in oneDNN's packed order, by the compiled C++ beside this file.

Decode is as fast as memory gives the weights. oneDNN's own product of few rows waits for it: every
matrix of SmolLM2-135M once, in bf16 by 2 threads of an EPYC with AVX512_BF16, takes 21.5 against
10.1 ms with 1 row, 45.9 against 36.7 with 32, and still 203 against 191 with 256.
Legend: T rows, E inputs, F outputs.
"""

import ctypes
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from interlock.plugins.native.library import NativeError, native_library

SOURCE = Path(__file__).with_name("few_rows.cpp")
BLOCK_OUTPUTS, BLOCK_INPUTS = 64, 32
"""Of the packed order; other sizes are padded, and oneDNN's alone."""

_POINTER, _INT = ctypes.c_void_p, ctypes.c_int64


class PackedWeight(ctypes.Structure):
    """`Product` of few_rows.cpp: addresses, whose owner keeps them alive."""

    _fields_ = (
        *((name, _POINTER) for name in ("weight", "bias")),
        *((name, _INT) for name in ("inputs", "outputs")),
    )


class FewRowsProduct:
    """x @ weight.T + bias for at most `most_rows` rows in bf16, sums in fp32."""

    def __init__(self, packed: Tensor, shape: tuple[int, int], bias_F: Tensor | None) -> None:
        """`packed` is oneDNN's, of a weight [F, E] of `shape` that `reads_packed` is true of."""
        self._owned = packed, bias_F
        self.outputs, self.inputs = shape
        self.most_rows = most_few_rows()
        bias = None if bias_F is None else bias_F.data_ptr()
        address = torch.ops.mkldnn.data_ptr(packed)
        self.weight = PackedWeight(address, bias, self.inputs, self.outputs)
        self._function = native_library(SOURCE).interlock_multiply_few
        self._function.argtypes = (_POINTER, _POINTER, _INT, _POINTER, _INT, _INT)
        self._function.restype = None
        self._address = ctypes.addressof(self.weight)

    def takes(self, x_TE: Tensor) -> bool:
        """Whether it multiplies these rows."""
        if x_TE.ndim != 2 or x_TE.dtype != torch.bfloat16:
            return False
        rows, inputs = x_TE.shape
        return 0 < rows <= self.most_rows and inputs == self.inputs and x_TE.stride(1) == 1

    def __call__(self, x_TE: Tensor) -> Tensor:
        """[T, E] -> [T, F]."""
        rows = x_TE.shape[0]
        y_TF = x_TE.new_empty(rows, self.outputs)
        self._function(
            self._address, x_TE.data_ptr(), x_TE.stride(0), y_TF.data_ptr(), rows,
            torch.get_num_threads(),
        )  # fmt: skip
        return y_TF


@cache
def most_few_rows() -> int:
    """Rows of a call; 0 where there is no compiler, or the processor does not multiply bf16."""
    try:
        return int(native_library(SOURCE).interlock_most_few_rows())
    except NativeError:
        return 0


def reads_packed(packed: Tensor, weight_FE: Tensor) -> bool:
    """Whether the kernel reads `packed`, oneDNN's of this weight: each is compared, in place.

    oneDNN promises no order. The comparison is one pass over both and needs no memory.
    """
    outputs, inputs = weight_FE.shape
    if weight_FE.dtype != torch.bfloat16 or outputs % BLOCK_OUTPUTS or inputs % BLOCK_INPUTS:
        return False
    if not most_few_rows():
        return False
    try:
        address, size = torch.ops.mkldnn.data_ptr(packed), torch.ops.mkldnn._nbytes(packed)
    except (AttributeError, RuntimeError, TypeError):
        return False
    weight_FE = weight_FE.contiguous()
    is_packed = native_library(SOURCE).interlock_is_packed
    is_packed.argtypes = (_POINTER, _POINTER, _INT, _INT, _INT)
    facts = outputs, inputs // 2, torch.get_num_threads()
    return size == weight_FE.nbytes and bool(is_packed(address, weight_FE.data_ptr(), *facts))
