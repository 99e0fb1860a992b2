"""Calls of the compiled attention of short rows: laid out once a step, run once a layer.

Legend: T tokens, H query heads, K key/value heads, D head size, V value head size, P pages in a
row of the table, B tokens in a page, R rows, U units, N queries.
"""

import ctypes
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from interlock.core.attention import AttentionBatch
from interlock.core.model import AttentionSpec
from interlock.plugins.native.library import native_library

SOURCE = Path(__file__).with_name("short_rows.cpp")
CHUNK_ENTRIES = 128
"""Entries of a unit. Chunks lie at absolute positions, so neither batch nor threads move a cut."""
DTYPES = {torch.bfloat16: "bfloat16", torch.float32: "float32", torch.float64: "float64"}
"""Dtypes that the library is compiled for."""

_POINTER, _INT, _REAL = ctypes.c_void_p, ctypes.c_int64, ctypes.c_double


class _Step(ctypes.Structure):
    """`Step` of short_rows.cpp, field by field."""

    _fields_ = (
        *((name, _POINTER) for name in ("q", "k_new", "v_new")),
        *((name, _INT) for name in ("q_token", "q_head", "k_token", "k_head", "v_token", "v_head")),
        *((name, _POINTER) for name in ("out", "k_plane", "v_plane")),
        *((name, _INT) for name in ("k_slot", "v_slot")),
        ("write_slots", _POINTER),
        *((name, _INT) for name in ("tokens", "units", "rows")),
        *((name, _POINTER) for name in ("unit", "row", "positions", "table", "tree", "partial")),
        ("partial_at", _POINTER),
        *((name, _INT) for name in ("table_width", "page_size")),
        *((name, _INT) for name in ("heads", "kv_heads", "head_size", "value_size", "window")),
        *((name, _REAL) for name in ("scale", "softcap")),
        ("sinks", _POINTER),
        ("threads", _INT),
    )


class Shape(NamedTuple):
    """What the kernel computes for a layer; `window` and `softcap` are 0 for none."""

    heads: int
    kv_heads: int
    head_size: int
    value_size: int
    scale: float
    window: int
    softcap: float

    @staticmethod
    def of(spec: AttentionSpec) -> "Shape":
        """Of a layer of form "heads", or of an absorbed one of form "latent"."""
        sizes = spec.head_dim, spec.v_head_dim
        if spec.form == "latent":
            sizes = spec.latent_rank + spec.rope_dim, spec.latent_rank
        heads = spec.num_heads, spec.num_kv_heads
        return Shape(*heads, *sizes, spec.scale, spec.window or 0, spec.softcap or 0.0)


Ints = NDArray[np.int64]


class RowFacts(NamedTuple):
    """One number a row: its row in the page table, its first flat token, how many there are, the
    entry that the first becomes, the oldest entry that some query sees, and the place of its
    first query among those that will be given."""

    index_R: Ints
    token_R: Ints
    new_R: Ints
    start_R: Ints
    first_R: Ints
    place_R: Ints


class ShortRows:
    """Rows that attend in place, for all layers of one shape and page table.

    Chains and draft trees of any length: time grows with queries times entries.
    """

    def __init__(
        self, batch: AttentionBatch, table: int, facts: RowFacts, shape: Shape,
        write_slots_T: Tensor, dtype: torch.dtype,
    ) -> None:  # fmt: skip
        """`write_slots_T` are the slots of all new tokens of the step, of these rows or not."""
        self._dtype, self._wide = dtype, torch.promote_types(dtype, torch.float32)
        self._function = getattr(native_library(SOURCE), f"interlock_attend_{DTYPES[dtype]}")
        row_R7, unit_U3, partial_U, partials = _units(facts, shape.heads)
        pages_RP = batch.page_tables[table].contiguous()
        partial = torch.empty(partials, shape.value_size + 2, dtype=self._wide)
        assert pages_RP.dtype == write_slots_T.dtype == batch.positions_T.dtype == torch.long
        trees = {at: mask.contiguous() for at, mask in batch.tree_masks.items()}
        tree = None
        if trees:
            found = (trees.get(at) for at in facts.index_R.tolist())
            addresses = [None if mask is None else mask.data_ptr() for mask in found]
            tree = (ctypes.c_void_p * len(addresses))(*addresses)
        # The structure holds addresses alone; these are what they point at.
        self._owned: tuple[Any, ...] = (
            batch, row_R7, unit_U3, partial_U, pages_RP, partial, trees, tree, write_slots_T,
        )  # fmt: skip
        self._step = _Step(
            write_slots=write_slots_T.data_ptr(),
            tokens=len(write_slots_T),
            units=len(unit_U3),
            rows=len(row_R7),
            unit=unit_U3.ctypes.data,
            row=row_R7.ctypes.data,
            positions=batch.positions_T.data_ptr(),
            table=pages_RP.data_ptr(),
            tree=None if tree is None else ctypes.addressof(tree),
            partial=partial.data_ptr(),
            partial_at=partial_U.ctypes.data,
            table_width=pages_RP.shape[1],
            page_size=batch.page_size,
            threads=torch.get_num_threads(),
            **shape._asdict(),
        )

    def attend(
        self, q_NHD: Tensor, k_new_TKD: Tensor, v_new_TKV: Tensor | None,
        k_plane_PBKD: Tensor, v_plane_PBKV: Tensor, out_NHV: Tensor, sinks_H: Tensor | None = None,
    ) -> None:  # fmt: skip
        """Write the step's new keys and values, then the rows' queries' results into `out_NHV`.

        One dtype throughout; the last axis of the inputs has unit stride. Without `v_new_TKV` a
        key's first V entries are its value, and both planes are one.
        """
        given = (q_NHD, k_new_TKD, v_new_TKV, k_plane_PBKD, v_plane_PBKV, out_NHV)
        assert all(x is None or (x.dtype == self._dtype and x.stride(-1) == 1) for x in given)
        step = self._step
        sinks = None if sinks_H is None else sinks_H.to(self._wide).contiguous()
        step.q, step.k_new = q_NHD.data_ptr(), k_new_TKD.data_ptr()
        step.q_token, step.q_head, _ = q_NHD.stride()
        step.k_token, step.k_head, _ = k_new_TKD.stride()
        if v_new_TKV is not None:
            step.v_new = v_new_TKV.data_ptr()
            step.v_token, step.v_head, _ = v_new_TKV.stride()
        step.out = out_NHV.data_ptr()
        step.k_plane, step.v_plane = k_plane_PBKD.data_ptr(), v_plane_PBKV.data_ptr()
        step.k_slot, step.v_slot = k_plane_PBKD.stride(1), v_plane_PBKV.stride(1)
        step.sinks = None if sinks is None else sinks.data_ptr()
        self._function(ctypes.byref(step))


def _units(facts: RowFacts, heads: int) -> tuple[Ints, Ints, Ints, int]:
    """The kernel's `row`, `unit`, `partial_at`, and the rows of its `partial`.

    Runs once a step and draft pass: methods and filled columns cost half of what functions do.
    """
    index, token, new, start, first, place = facts
    end, rows = start + new, len(index)
    chunk_R = first // CHUNK_ENTRIES
    units_R = (end - 1) // CHUNK_ENTRIES + 1 - chunk_R
    first_unit_R = units_R.cumsum() - units_R
    row_R7 = np.empty((rows, 7), dtype=np.int64)
    for column, values in enumerate((place, new, start, index, token, first_unit_R, units_R)):
        row_R7[:, column] = values
    row_U = np.arange(rows).repeat(units_R)
    begin_U = (np.arange(len(row_U)) + (chunk_R - first_unit_R)[row_U]) * CHUNK_ENTRIES
    unit_U3 = np.empty((len(row_U), 3), dtype=np.int64)
    unit_U3[:, 0] = row_U
    np.maximum(begin_U, first[row_U], out=unit_U3[:, 1])
    np.minimum(begin_U + CHUNK_ENTRIES, end[row_U], out=unit_U3[:, 2])
    size_U = new[row_U] * heads
    ends_U = size_U.cumsum()
    return row_R7, unit_U3, ends_U - size_U, int(ends_U[-1]) if rows else 0
