"""Multi-head latent attention by Triton kernels: absorbed over pages, expanded for long chunks.

Legend: T tokens, R rows of a step, S expanded entries of all rows, H heads, C latent rank, N and P
the parts of a head without and with rotary embedding, V value head size.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from interlock.core.attention import AttentionBatch
from interlock.core.model import AttentionInput, AttentionSpec, LatentInput
from interlock.plugins.attention.kernels.mla import (
    Expanded,
    absorbed_attention,
    expanded_attention,
)
from interlock.plugins.attention.kernels.ragged import RaggedPlan, packed
from interlock.plugins.attention.mla import MlaAttention
from interlock.plugins.attention.mla_cost import MlaForm, cheaper_form
from interlock.plugins.attention.stored import read

EXPANDED_BYTES = 1 << 28
"""Keys and values expanded at a time; if more are needed, heads take turns."""


@dataclass(frozen=True)
class Part:
    """Rows of a step that run in one form, as a step of their own."""

    plan: RaggedPlan
    tokens_T: Tensor | None
    """Their tokens in the step; None: all of them, in order."""

    def take(self, x: Tensor) -> Tensor:
        """Of a tensor [T, ...] the part's rows."""
        return x if self.tokens_T is None else x.index_select(0, self.tokens_T)


@dataclass(frozen=True)
class Gathered:
    """Entries that a part's rows can see, end to end."""

    slots_S: Tensor
    base_R: Tensor
    """int32: entry e of row r is gathered in base_R[r] + e."""


class MlaTritonPlan(RaggedPlan):
    """A ragged plan that knows where new rows are written, and which rows run in which form.

    Short rows run absorbed unless asked otherwise, so that a step of decode and verification is
    the same launches whatever its lengths. Steps with longer rows are planned on the host.
    """

    def __init__(self, batch: AttentionBatch, form: str) -> None:
        super().__init__(batch)
        self._form = form
        self._parts: dict[AttentionSpec, dict[MlaForm, Part]] = {}
        self._gathered: dict[tuple[int, int | None, Part], Gathered] = {}
        row_T = self.row_T.long()
        token_T = torch.arange(len(row_T), device=self.device)
        entry_T = self.starts_R[row_T] + token_T - self.offsets_R1[row_T]
        self.write_slots = tuple(
            pages[row_T, entry_T // batch.page_size] * batch.page_size + entry_T % batch.page_size
            for pages in batch.page_tables
        )
        self.tensors = (*self.tensors, *self.write_slots)
        if form == "absorbed" or (form == "cost" and not self.long_rows):
            counts = (batch.num_rows, len(row_T), len(self.masks))
            self.shape_key = (*counts, *(pages.shape[1] for pages in batch.page_tables))
        else:
            self.shape_key = object()  # lengths decide what is gathered and expanded: no other's

    def parts(self, spec: AttentionSpec) -> dict[MlaForm, Part]:
        """The rows of each form that occurs."""
        if spec not in self._parts:
            rows: dict[MlaForm, list[int]] = {"absorbed": [], "expanded": []}
            for row, (token, end) in enumerate(pairwise(self.batch.row_offsets)):
                if token < end:
                    rows[self._form_of(spec, row, end - token)].append(row)
            found = {form: some for form, some in rows.items() if some}
            whole = len(found) == 1
            self._parts[spec] = {
                form: Part(self, None) if whole else self._part(some)
                for form, some in found.items()
            }
        return self._parts[spec]

    def gathered(self, part: Part, table: int, window: int | None) -> Gathered:
        """Where the entries are that the part's rows see in layers of this table and window."""
        key = (table, window, part)
        if key not in self._gathered:
            self._gathered[key] = _gathered(part.plan.batch, table, window, self.device)
        return self._gathered[key]

    def _form_of(self, spec: AttentionSpec, row: int, new: int) -> MlaForm:
        if self._form != "cost":
            return "absorbed" if self._form == "absorbed" else "expanded"
        if row not in self.long_rows:
            return "absorbed"
        start = self.batch.starts[row]
        first = _first_entry(self.batch, row, spec.window)
        return cheaper_form(spec, new, start, start + new - first)

    def _part(self, rows: list[int]) -> Part:
        batch = self.batch
        spans = [range(batch.row_offsets[row], batch.row_offsets[row + 1]) for row in rows]
        tokens = [token for span in spans for token in span]
        _, (tokens_T, rows_R) = packed((tokens, rows), self.device)
        sub = AttentionBatch(
            row_offsets=tuple(np.cumsum([0, *map(len, spans)]).tolist()),
            starts=tuple(batch.starts[row] for row in rows),
            positions=tuple(batch.positions[token] for token in tokens),
            positions_T=batch.positions_T.index_select(0, tokens_T),
            page_tables=tuple(pages.index_select(0, rows_R) for pages in batch.page_tables),
            page_size=batch.page_size,
            tree_masks={
                at: batch.tree_masks[row] for at, row in enumerate(rows) if row in batch.tree_masks
            },
        )
        return Part(RaggedPlan(sub), tokens_T)


def _first_entry(batch: AttentionBatch, row: int, window: int | None) -> int:
    """The oldest entry that a row's queries see; its end if it has none."""
    token, end = batch.row_offsets[row : row + 2]
    if token == end:
        return batch.starts[row]
    if window is None:
        return 0
    oldest = batch.positions[token] - window + 1
    return min(max(0, oldest), batch.starts[row])


def _gathered(
    batch: AttentionBatch, table: int, window: int | None, device: torch.device
) -> Gathered:
    first_R = np.array([_first_entry(batch, row, window) for row in range(batch.num_rows)])
    end_R = np.array(batch.starts) + np.diff(batch.row_offsets)
    ends_R = np.cumsum(end_R - first_R)
    base_R = ends_R - end_R
    row_S = np.repeat(np.arange(batch.num_rows), end_R - first_R)
    entry_S = np.arange(ends_R[-1]) - base_R[row_S]
    places = (row_S, entry_S // batch.page_size, entry_S % batch.page_size, base_R)
    _, (row, page, offset, base) = packed(places, device)
    pages = batch.page_tables[table][row.long(), page.long()]
    return Gathered(pages * batch.page_size + offset, base)


class TritonMlaAttention(MlaAttention):
    """The same forms, windows and draft trees by Triton kernels, in any dtype.

    `form` "cost" runs rows of few new tokens absorbed, longer ones in the cheaper form.
    """

    capturable = True

    def plan(self, batch: AttentionBatch) -> Any:
        """One transfer to the device; forms and gathers of longer rows when a layer asks."""
        return MlaTritonPlan(batch, self.form)

    def attend(
        self,
        spec: AttentionSpec,
        inputs: AttentionInput,
        plan: Any,
        table: int,
        planes: Mapping[str, Tensor],
    ) -> Tensor:
        """[T, H, V] in the queries' dtype."""
        assert isinstance(plan, MlaTritonPlan)
        assert isinstance(inputs, LatentInput)
        self.store(spec, inputs, plan, table, planes)
        queries = inputs.q_nope_THN
        out_THV = queries.new_empty(len(queries), spec.num_heads, spec.v_head_dim)
        for form, part in plan.parts(spec).items():
            with plan.on_device():
                if form == "absorbed":
                    result_THV = _absorbed(spec, inputs, part, table, planes)
                else:
                    where = plan.gathered(part, table, spec.window)
                    result_THV = _expanded(spec, inputs, part, where, planes)
            if part.tokens_T is None:
                return result_THV
            out_THV.index_copy_(0, part.tokens_T.long(), result_THV)
        return out_THV


def _absorbed(
    spec: AttentionSpec, inputs: LatentInput, part: Part, table: int, planes: Mapping[str, Tensor]
) -> Tensor:
    """[T, H, V]: queries into latent space, sums of latents, results out of it."""
    q_THN, q_THP = part.take(inputs.q_nope_THN), part.take(inputs.q_rope_THR)
    q_THC = torch.einsum("thn,hnc->thc", q_THN, inputs.up_k_HNC).contiguous()
    sums_THC = absorbed_attention(spec, part.plan, table, q_THC, q_THP.contiguous(), planes)
    return torch.einsum("thc,hvc->thv", sums_THC, inputs.up_v_HVC).contiguous()


def _expanded(
    spec: AttentionSpec, inputs: LatentInput, part: Part, where: Gathered,
    planes: Mapping[str, Tensor],
) -> Tensor:  # fmt: skip
    """[T, H, V]: latents to keys and values, for as many heads at a time as there is room for."""
    q_THN, q_THP = part.take(inputs.q_nope_THN), part.take(inputs.q_rope_THR).contiguous()
    q_THN = q_THN.contiguous()
    rows_SL = read(planes, "latent", where.slots_S).to(q_THN.dtype)
    latent_SC, k_SP = rows_SL.tensor_split((spec.latent_rank,), dim=-1)
    out_THV = q_THN.new_empty(len(q_THN), spec.num_heads, spec.v_head_dim)
    head_bytes = len(rows_SL) * (spec.nope_dim + spec.v_head_dim) * rows_SL.itemsize
    at_once = max(1, EXPANDED_BYTES // head_bytes)
    for first in range(0, spec.num_heads, at_once):
        some = slice(first, first + at_once)
        k_SHN = _to_heads(latent_SC, inputs.up_k_HNC[some])
        v_SHV = _to_heads(latent_SC, inputs.up_v_HVC[some])
        expanded_attention(
            spec, part.plan, where.base_R, q_THN[:, some], q_THP[:, some],
            Expanded(k_SHN, k_SP, v_SHV), out_THV[:, some],
        )  # fmt: skip
    return out_THV


def _to_heads(latent_SC: Tensor, up_HNC: Tensor) -> Tensor:
    """[S, H, N]: every head's part of every entry."""
    return (latent_SC @ up_HNC.flatten(0, 1).T).view(len(latent_SC), *up_HNC.shape[:2])
