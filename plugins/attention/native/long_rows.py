"""Calls of the compiled attention of long rows: laid out once a step, run once a layer.

Legend: T tokens, H query heads, K key/value heads, D head size, V value head size, P pages, B
tokens in a page, U units.
"""

import ctypes
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from interlock.core.attention import AttentionBatch
from interlock.plugins.attention.native.rows import Ints, RowFacts, Shape
from interlock.plugins.native.library import native_library

SOURCE = Path(__file__).with_name("long_rows.cpp")
UNIT_ROWS = 192
"""Queries times the heads that share a key head in a unit, about: what repays packing the keys."""

_POINTER, _INT, _REAL = ctypes.c_void_p, ctypes.c_int64, ctypes.c_double


class _Step(ctypes.Structure):
    """`Step` of long_rows.cpp, field by field."""

    _fields_ = (
        ("q", _POINTER),
        *((name, _INT) for name in ("q_token", "q_head")),
        *((name, _POINTER) for name in ("out", "k_plane", "v_plane")),
        *((name, _INT) for name in ("k_slot", "v_slot", "units")),
        *((name, _POINTER) for name in ("unit", "row", "table")),
        *((name, _INT) for name in ("table_width", "page_size", "unit_queries")),
        *((name, _INT) for name in ("heads", "kv_heads", "head_size", "value_size", "window")),
        *((name, _REAL) for name in ("scale", "softcap")),
        ("sinks", _POINTER),
        ("threads", _INT),
    )


def runs_long_rows(dtype: torch.dtype) -> bool:
    """True if this processor multiplies pairs of `dtype`: bf16 with AVX512_BF16."""
    return dtype == torch.bfloat16 and bool(native_library(SOURCE).interlock_has_long_rows())


class LongRows:
    """Chains of many new tokens that attend in place, in bf16, for all layers of one shape and
    page table. New keys and values are in their pages already.
    """

    def __init__(self, batch: AttentionBatch, table: int, facts: RowFacts, shape: Shape) -> None:
        queries = max(1, UNIT_ROWS * shape.kv_heads // shape.heads)
        row_R5 = np.stack(
            (facts.place_R, facts.new_R, facts.start_R, facts.index_R, facts.first_R), axis=1
        )
        unit_U3 = _units(facts, queries, shape.kv_heads)
        pages_RP = batch.page_tables[table].contiguous()
        # The structure holds addresses alone; these are what they point at.
        self._owned: tuple[Any, ...] = (row_R5, unit_U3, pages_RP)
        self._step = _Step(
            units=len(unit_U3),
            unit=unit_U3.ctypes.data,
            row=row_R5.ctypes.data,
            table=pages_RP.data_ptr(),
            table_width=pages_RP.shape[1],
            page_size=batch.page_size,
            unit_queries=queries,
            threads=torch.get_num_threads(),
            **shape._asdict(),
        )

    def attend(
        self, q_THD: Tensor, k_plane_PBKD: Tensor, v_plane_PBKV: Tensor, out_THV: Tensor,
        sinks_H: Tensor | None = None,
    ) -> None:  # fmt: skip
        """Write the rows' queries' results into `out_THV`; the last axis of `q_THD` has unit
        stride."""
        step = self._step
        sinks = None if sinks_H is None else sinks_H.to(torch.float32).contiguous()
        step.q = q_THD.data_ptr()
        step.q_token, step.q_head, _ = q_THD.stride()
        step.out = out_THV.data_ptr()
        step.k_plane, step.v_plane = k_plane_PBKD.data_ptr(), v_plane_PBKV.data_ptr()
        step.k_slot, step.v_slot = k_plane_PBKD.stride(1), v_plane_PBKV.stride(1)
        step.sinks = None if sinks is None else sinks.data_ptr()
        native_library(SOURCE).interlock_attend_long(ctypes.byref(step))


def _units(facts: RowFacts, queries: int, kv_heads: int) -> Ints:
    """[U, 3]: row, key head and first query of every unit; those that read most go first, so that
    the threads end together."""
    blocks_R = -(-facts.new_R // queries)
    row_U = np.repeat(np.arange(len(blocks_R)), blocks_R)
    query_U = (np.arange(len(row_U)) - (np.cumsum(blocks_R) - blocks_R)[row_U]) * queries
    order = np.argsort(-(facts.start_R[row_U] + query_U), kind="stable")
    row, query = (x[order].repeat(kv_heads) for x in (row_U, query_U))
    head = np.tile(np.arange(kv_heads), len(order))
    return np.ascontiguousarray(np.stack((row, head, query), axis=1))
