"""Layers of few rows on a CPU: what stands between two layers' attention is one compiled call.

A decode step of a small model is hundreds of short operations; each has a fixed cost, wakes threads
and leaves memory idle meanwhile. Legend: T tokens, E hidden size, H query heads, K key/value heads,
D head size, R rotated size, F size inside the MLP.
"""

import ctypes
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from interlock.core.model import Attend, AttentionSpec, HeadsInput, Taps
from interlock.plugins.models.native.few_rows import SOURCE, FewRowsProduct, PackedWeight
from interlock.plugins.native.library import native_library

_POINTER, _INT, _REAL = ctypes.c_void_p, ctypes.c_int64, ctypes.c_double


class _Layer(ctypes.Structure):
    """`Layer` of few_rows.cpp, field by field."""

    _fields_ = (
        *((name, PackedWeight) for name in ("qkv", "out", "gate_up", "down")),
        *((name, _POINTER) for name in ("attention_norm", "mlp_norm")),
        *((name, _REAL) for name in ("attention_eps", "mlp_eps")),
    )


class _Pass(ctypes.Structure):
    """`Pass` of few_rows.cpp, field by field."""

    _fields_ = (
        *((name, _POINTER) for name in ("x", "normed", "qkv", "gate_up", "gated")),
        *((name, _INT) for name in ("rows", "hidden", "inner", "heads", "turned_heads")),
        *((name, _INT) for name in ("head_size", "turned", "threads")),
    )


class LayerParts(NamedTuple):
    """A layer: x += out(attention(rotated(qkv(norm(x))))); x += down(swiglu(gate_up(norm(x)))).

    Queries and keys are rotated, values stand behind them in `qkv`. Norms are weight [E] in fp32
    and epsilon.
    """

    spec: AttentionSpec
    sinks_H: Tensor | None
    attention_norm: tuple[Tensor, float]
    qkv: FewRowsProduct
    out: FewRowsProduct
    mlp_norm: tuple[Tensor, float]
    gate_up: FewRowsProduct
    down: FewRowsProduct


class FewRowsLayers:
    """All layers of a decoder, for as many tokens in bf16 as their products take."""

    def __init__(self, parts: Sequence[LayerParts]) -> None:
        self._parts = tuple(parts)  # owns what the structures point at
        self._layers = [
            _Layer(
                *(product.weight for product in (part.qkv, part.out, part.gate_up, part.down)),
                *(weight_E.data_ptr() for weight_E, _ in (part.attention_norm, part.mlp_norm)),
                *(eps for _, eps in (part.attention_norm, part.mlp_norm)),
            )
            for part in parts
        ]
        self._between = native_library(SOURCE).interlock_between
        self._between.argtypes, self._between.restype = (_POINTER,) * 6, None

    def takes(self, x_TE: Tensor) -> bool:
        """Whether it runs these tokens."""
        return x_TE.is_contiguous() and self._parts[0].qkv.takes(x_TE)

    def __call__(
        self, x_TE: Tensor, rotations: Sequence[tuple[Tensor, Tensor]], attend: Attend,
        taps: Taps | None = None,
    ) -> Tensor:  # fmt: skip
        """What the last layer gives, written over `x_TE`.

        `rotations` are cos and sin [T, 1, R] by layer.
        """
        tapped = () if taps is None else taps.layers
        first = self._parts[0]
        turned = rotations[0][0].shape[-1]
        keys_end = first.spec.num_heads + first.spec.num_kv_heads
        heads, head_size = keys_end + first.spec.num_kv_heads, first.spec.head_dim
        inner = first.down.inputs
        normed_TE = torch.empty_like(x_TE)
        qkv_THD = x_TE.new_empty(len(x_TE), heads, head_size)
        gate_up_TX, gated_TF = (x_TE.new_empty(len(x_TE), n * inner) for n in (2, 1))
        buffers = (x_TE, normed_TE, qkv_THD, gate_up_TX, gated_TF)
        step = _Pass(
            *(buffer.data_ptr() for buffer in buffers),
            *(len(x_TE), x_TE.shape[1], inner, heads, keys_end, head_size, turned),
            torch.get_num_threads(),
        )
        q_THD = qkv_THD[:, : first.spec.num_heads]
        k_TKD, v_TKD = qkv_THD[:, first.spec.num_heads : keys_end], qkv_THD[:, keys_end:]
        address = ctypes.addressof(step)
        done: int | None = None
        attended_THV: Tensor | None = None
        for at, (part, layer) in enumerate(zip(self._parts, self._layers, strict=True)):
            cos_T1R, sin_T1R = rotations[at]
            given = None if attended_THV is None else attended_THV.data_ptr()
            here = ctypes.addressof(layer)
            self._between(address, done, given, here, cos_T1R.data_ptr(), sin_T1R.data_ptr())
            if taps is not None and at - 1 in tapped:
                taps.offer(at - 1, x_TE.clone())
            inputs = HeadsInput(q_THD, k_TKD, v_TKD, part.sinks_H)
            attended_THV, done = attend(at, part.spec, inputs).contiguous(), here
            assert attended_THV.shape == q_THD.shape
            assert attended_THV.dtype == q_THD.dtype
        assert attended_THV is not None
        self._between(address, done, attended_THV.data_ptr(), None, None, None)
        if taps is not None and len(self._parts) - 1 in tapped:
            taps.offer(len(self._parts) - 1, x_TE)
        return x_TE
