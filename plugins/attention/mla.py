"""Multi-head latent attention over one paged plane of latents.

Legend: T tokens, R rows of a group, Q queries a row, S gathered entries, H heads, C latent rank,
N and P the parts of a head without and with rotary embedding, V value head size, L = C + P.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor

from interlock.core.attention import AttentionBackend, AttentionBatch
from interlock.core.cache_spec import CacheGroup
from interlock.core.component import BuildContext
from interlock.core.model import AttentionInput, AttentionSpec, LatentInput
from interlock.plugins.attention import MlaConfig, latent_limit
from interlock.plugins.attention.blocks import BlockPlan
from interlock.plugins.attention.forms import require_form
from interlock.plugins.attention.invariant import block_attention
from interlock.plugins.attention.kernel_choice import builds_triton
from interlock.plugins.attention.masked import masked_attention
from interlock.plugins.attention.mla_cost import MlaForm, cheaper_form
from interlock.plugins.attention.native.choice import runs_native
from interlock.plugins.attention.native.plan import NativePlan
from interlock.plugins.attention.native.rows import Shape
from interlock.plugins.attention.paged import PagedPlan, RowGroup
from interlock.plugins.attention.products import project
from interlock.plugins.attention.stored import RowWriter, new_rows, read, stored_groups


class MlaPlan(PagedPlan):
    """A paged plan that also knows the form of each row, chosen once per kind of layer."""

    def __init__(self, batch: AttentionBatch, form: str) -> None:
        super().__init__(batch)
        self._form = form
        self._rows_of: dict[AttentionSpec, dict[MlaForm, tuple[int, ...]]] = {}

    def rows_of(self, spec: AttentionSpec, form: MlaForm) -> tuple[int, ...]:
        """Indexes of the rows that run in this form."""
        if spec not in self._rows_of:
            chosen: dict[MlaForm, list[int]] = {"absorbed": [], "expanded": []}
            forced: dict[str, MlaForm] = {"absorbed": "absorbed", "expanded": "expanded"}
            for row in self.rows(spec.window):
                cheaper = cheaper_form(spec, row.new, row.start, row.span)
                chosen[forced.get(self._form, cheaper)].append(row.index)
            self._rows_of[spec] = {name: tuple(rows) for name, rows in chosen.items()}
        return self._rows_of[spec][form]


class NativeMlaPlan(MlaPlan, NativePlan):
    """A plan whose short absorbed rows the compiled kernel answers."""

    def absorbed(self, spec: AttentionSpec) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The short and the long rows that run absorbed."""
        rows = self.rows_of(spec, "absorbed")
        short = tuple(row for row in rows if self.is_short(row))
        return short, tuple(row for row in rows if not self.is_short(row))


class MlaAttention(AttentionBackend):
    """Form "latent" with windows and draft trees; caches C + P numbers a token for all heads.

    `form` is "cost" (the cheaper form for each row, see mla_cost), "absorbed" or "expanded".
    """

    def __init__(self, form: str = "cost", cache_dtype: str = "auto") -> None:
        self.form = form
        self._cache_dtype = cache_dtype
        self.writer = RowWriter()

    def cache_groups(
        self, specs: tuple[AttentionSpec, ...], first_layer: int
    ) -> tuple[CacheGroup, ...]:
        """Plane "latent", one row a token; ConfigError for a layer of another form."""
        require_form("mla", "latent", specs, first_layer)
        return stored_groups(specs, first_layer, self._cache_dtype)

    def losses(self) -> Mapping[str, float]:
        """Of rows in fp8: relative root mean square error of the first rows of each layer."""
        return self.writer.losses()

    def plan(self, batch: AttentionBatch) -> PagedPlan:
        """Write slots now; forms, gather slots and masks once per (page table, kind of layer)."""
        return MlaPlan(batch, self.form)

    def attend(
        self,
        spec: AttentionSpec,
        inputs: AttentionInput,
        plan: Any,
        table: int,
        planes: Mapping[str, Tensor],
    ) -> Tensor:
        """[T, H, V] in the queries' dtype."""
        assert isinstance(plan, MlaPlan)
        assert isinstance(inputs, LatentInput)
        queries = inputs.q_nope_THN
        out_THV = queries.new_empty(len(queries), spec.num_heads, spec.v_head_dim)
        left = self._begun(spec, inputs, plan, table, planes, out_THV)
        for group in plan.groups(table, spec.window, left):
            rows_RSL = read(planes, "latent", group.slots_RS).to(queries.dtype)
            _absorbed(spec, inputs, group, rows_RSL, out_THV)
        for group in plan.groups(table, spec.window, plan.rows_of(spec, "expanded")):
            rows_RSL = read(planes, "latent", group.slots_RS).to(queries.dtype)
            _expanded(spec, inputs, group, rows_RSL, out_THV)
        return out_THV

    def store(
        self,
        spec: AttentionSpec,
        inputs: AttentionInput,
        plan: Any,
        table: int,
        planes: Mapping[str, Tensor],
    ) -> None:
        """See AttentionBackend."""
        assert isinstance(inputs, LatentInput)
        self.writer.write(planes, plan.write_slots[table], new_rows(inputs, planes))

    def _begun(
        self, spec: AttentionSpec, inputs: LatentInput, plan: MlaPlan, table: int,
        planes: Mapping[str, Tensor], _out_THV: Tensor,
    ) -> tuple[int, ...]:  # fmt: skip
        """Put the new latents in their pages; the absorbed rows that are still to be answered."""
        self.store(spec, inputs, plan, table, planes)
        return plan.rows_of(spec, "absorbed")


class NativeMlaAttention(MlaAttention):
    """The same; short absorbed rows are answered by a compiled kernel that copies no entry.

    Where `NativeGqaAttention` runs; a stored row is a key of L and, in its first C, a value.
    """

    def plan(self, batch: AttentionBatch) -> NativeMlaPlan:
        """Write slots now; forms and layouts once per (page table, kind of layer)."""
        return NativeMlaPlan(batch, self.form)

    def _begun(
        self, spec: AttentionSpec, inputs: LatentInput, plan: MlaPlan, table: int,
        planes: Mapping[str, Tensor], out_THV: Tensor,
    ) -> tuple[int, ...]:  # fmt: skip
        assert isinstance(plan, NativeMlaPlan)
        short, long = plan.absorbed(spec)
        nope_THN, rope_THR = inputs.q_nope_THN, inputs.q_rope_THR
        tokens_N = plan.tokens_of(short)
        if tokens_N is not None:
            nope_THN, rope_THR = nope_THN[tokens_N], rope_THR[tokens_N]
        nope_NHC = torch.bmm(nope_THN.transpose(0, 1), inputs.up_k_HNC).transpose(0, 1)
        q_NHL = torch.cat((nope_NHC, rope_THR), dim=-1)
        new_TL = new_rows(inputs, planes)["latent"]
        latent = planes["latent"]
        sums_NHC = q_NHL.new_empty(len(q_NHL), spec.num_heads, spec.latent_rank)
        rows = plan.short_rows(table, Shape.of(spec), q_NHL.dtype, short)
        rows.attend(q_NHL, new_TL[:, None], None, latent, latent, sums_NHC)
        result_NHV = torch.bmm(sums_NHC.transpose(0, 1), inputs.up_v_HVC.mT).transpose(0, 1)
        if tokens_N is None:
            out_THV.copy_(result_NHV)
        else:
            out_THV[tokens_N] = result_NHV
        return long


def _absorbed(
    spec: AttentionSpec, inputs: LatentInput, group: RowGroup, rows_RSL: Tensor, out_THV: Tensor
) -> None:
    """Queries are taken into latent space, where all heads share one key, the stored row.

    The row is its own value too; the rotary part of the sum is dropped.
    """
    shared_RS1L = rows_RSL[:, :, None]
    for tile in group.tiles:
        nope_RQHC = torch.einsum(
            "rqhn,hnc->rqhc", inputs.q_nope_THN[tile.tokens_RQ], inputs.up_k_HNC
        )
        q_RQHL = torch.cat((nope_RQHC, inputs.q_rope_THR[tile.tokens_RQ]), dim=-1)
        seen_RS1L = shared_RS1L[:, tile.first : tile.end]
        sums_RQHL = masked_attention(
            q_RQHL, seen_RS1L, seen_RS1L, tile.mask_RQS, tile.causal, spec.scale
        )
        sums_RQHC = sums_RQHL[..., : spec.latent_rank]
        tile.scatter(torch.einsum("rqhc,hvc->rqhv", sums_RQHC, inputs.up_v_HVC), out_THV)


def _expanded(
    spec: AttentionSpec, inputs: LatentInput, group: RowGroup, rows_RSL: Tensor, out_THV: Tensor
) -> None:
    """Latents are expanded to a key and a value a head; heads share the rotary key."""
    latent_RSC, rope_RSP = rows_RSL.tensor_split((spec.latent_rank,), dim=-1)
    nope_RSHN = torch.einsum("rsc,hnc->rshn", latent_RSC, inputs.up_k_HNC)
    rope_RSHP = rope_RSP[:, :, None].expand(-1, -1, spec.num_heads, -1)
    k_RSHD = torch.cat((nope_RSHN, rope_RSHP), dim=-1)
    v_RSHV = torch.einsum("rsc,hvc->rshv", latent_RSC, inputs.up_v_HVC)
    for tile in group.tiles:
        tokens_RQ, seen = tile.tokens_RQ, slice(tile.first, tile.end)
        q_RQHD = torch.cat((inputs.q_nope_THN[tokens_RQ], inputs.q_rope_THR[tokens_RQ]), dim=-1)
        result_RQHV = masked_attention(
            q_RQHD, k_RSHD[:, seen], v_RSHV[:, seen], tile.mask_RQS, tile.causal, spec.scale
        )
        tile.scatter(result_RQHV, out_THV)


def _shared_row(planes: Mapping[str, Tensor], slots: Tensor) -> Tensor:
    """[*slots.shape, 1, L]: the row that all heads share."""
    return read(planes, "latent", slots)[..., None, :]


class InvariantMlaAttention(MlaAttention):
    """The same, absorbed, with bits that depend on a query's own tokens alone (see `invariant`).

    Queries stay in at least fp32 on their way into latent space and out of it.
    """

    def __init__(self, cache_dtype: str = "auto") -> None:
        super().__init__("absorbed", cache_dtype)

    def plan(self, batch: AttentionBatch) -> BlockPlan:
        """Write slots and chains now; blocks once per (page table, window, heads)."""
        return BlockPlan(batch)

    def attend(
        self,
        spec: AttentionSpec,
        inputs: AttentionInput,
        plan: Any,
        table: int,
        planes: Mapping[str, Tensor],
    ) -> Tensor:
        """[T, H, V] in the queries' dtype."""
        assert isinstance(plan, BlockPlan)
        assert isinstance(inputs, LatentInput)
        self.store(spec, inputs, plan, table, planes)
        nope_THC = project(inputs.q_nope_THN, inputs.up_k_HNC)
        q_THL = torch.cat((nope_THC, inputs.q_rope_THR.to(nope_THC.dtype)), dim=-1)
        sums_THL = block_attention(spec, plan, table, q_THL, [partial(_shared_row, planes)])
        out_THV = project(sums_THL[..., : spec.latent_rank], inputs.up_v_HVC.mT)
        return out_THV.to(inputs.q_nope_THN.dtype)


def build(config: MlaConfig, context: BuildContext) -> MlaAttention:
    """The component's instance."""
    if context.batch_invariant:
        return InvariantMlaAttention(context.cache_dtype)
    if builds_triton(config.kernel, context, latent_limit):
        from interlock.plugins.attention.triton_mla import TritonMlaAttention

        return TritonMlaAttention(config.form, context.cache_dtype)
    kind = NativeMlaAttention if runs_native(config.kernel, context) else MlaAttention
    return kind(config.form, context.cache_dtype)
