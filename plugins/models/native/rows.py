"""Norms, gates and rotations of rows on a CPU by the compiled C++ beside this file.

torch needs ten operations for a norm and five for a rotation; in a decode step of a small model
their fixed costs are a quarter of the time. Legend: T rows, E entries of a row, F = E / 2, H heads,
D head size, R rotated size.
"""

import ctypes
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from interlock.plugins.models.row_tiles import FAST, Rows
from interlock.plugins.native.library import NativeError, native_library

SOURCE = Path(__file__).with_name("fused_rows.cpp")
DTYPES = {torch.bfloat16: "bfloat16", torch.float32: "float32"}
"""Dtypes that the library is compiled for; sums are in fp32."""
SERIAL = 1 << 15
"""Elements below which one thread does it."""

_POINTER, _INT, _REAL = ctypes.c_void_p, ctypes.c_int64, ctypes.c_double


class NativeRows(Rows):
    """Rows of one dtype; what the library has no code for goes to torch."""

    def __init__(self, library: ctypes.CDLL, dtype: torch.dtype) -> None:
        self._dtype = dtype

        def function(name: str, *arguments: Any) -> Any:
            found = getattr(library, f"interlock_{name}_{DTYPES[dtype]}")
            found.argtypes, found.restype = arguments, None
            return found

        self._norm = function("norm", _POINTER, _INT, _POINTER, _POINTER, _INT, _INT, _REAL, _INT)
        self._swiglu = function("swiglu", _POINTER, _INT, _POINTER, _INT, _INT, _INT)
        self._rotate = function("rotate", _POINTER, _INT, _INT, *(_POINTER,) * 3, *(_INT,) * 5)

    def norm(self, x: Tensor, weight_E: Tensor, eps: float) -> Tensor:
        """See Rows."""
        if x.ndim != 2 or not self._reads(x) or weight_E.dtype != torch.float32:
            return super().norm(x, weight_E, eps)
        out_TE = x.new_empty(x.shape)
        self._norm(
            x.data_ptr(), x.stride(0), weight_E.data_ptr(), out_TE.data_ptr(), *x.shape, eps,
            self._threads(x),
        )  # fmt: skip
        return out_TE

    def swiglu(self, gate_up_TE: Tensor) -> Tensor:
        """See Rows."""
        if gate_up_TE.ndim != 2 or not self._reads(gate_up_TE):
            return super().swiglu(gate_up_TE)
        rows, size = gate_up_TE.shape[0], gate_up_TE.shape[1] // 2
        out_TF = gate_up_TE.new_empty(rows, size)
        self._swiglu(
            gate_up_TE.data_ptr(), gate_up_TE.stride(0), out_TF.data_ptr(), rows, size,
            self._threads(gate_up_TE),
        )  # fmt: skip
        return out_TF

    def rotate(self, x_THD: Tensor, cos_T1R: Tensor, sin_T1R: Tensor) -> Tensor:
        """See Rows."""
        wide = cos_T1R.dtype == torch.float32 and cos_T1R.is_contiguous()
        if not wide or not self._reads(x_THD) or not sin_T1R.is_contiguous():
            return super().rotate(x_THD, cos_T1R, sin_T1R)
        out_THD = x_THD.new_empty(x_THD.shape)
        token, head, _ = x_THD.stride()
        self._rotate(
            x_THD.data_ptr(), token, head, cos_T1R.data_ptr(), sin_T1R.data_ptr(),
            out_THD.data_ptr(), *x_THD.shape, cos_T1R.shape[-1], self._threads(x_THD),
        )  # fmt: skip
        return out_THD

    def _reads(self, x: Tensor) -> bool:
        return x.dtype == self._dtype and x.stride(-1) == 1

    def _threads(self, x: Tensor) -> int:
        return torch.get_num_threads() if x.numel() >= SERIAL else 1


def native_rows(dtype: torch.dtype, device: torch.device) -> Rows:
    """Compiled ones where they run: a CPU with a C++ compiler, bf16 or fp32; else torch's."""
    if device.type != "cpu" or dtype not in DTYPES:
        return FAST
    try:
        return NativeRows(native_library(SOURCE), dtype)
    except NativeError:
        return FAST
