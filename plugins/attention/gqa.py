"""Multi-head, grouped-query and multi-query attention over paged K and V.

Legend: T tokens, H query heads, K key/value heads, D head size, V value head size.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any

from torch import Tensor

from interlock.core.attention import AttentionBackend, AttentionBatch
from interlock.core.cache_spec import CacheGroup
from interlock.core.component import BuildContext
from interlock.core.model import AttentionInput, AttentionSpec, HeadsInput
from interlock.plugins.attention import GqaConfig, heads_limit
from interlock.plugins.attention.blocks import BlockPlan
from interlock.plugins.attention.explicit import explicit_attention
from interlock.plugins.attention.forms import require_form
from interlock.plugins.attention.invariant import block_attention
from interlock.plugins.attention.kernel_choice import builds_triton
from interlock.plugins.attention.masked import masked_attention
from interlock.plugins.attention.native.choice import runs_native
from interlock.plugins.attention.native.long_rows import runs_long_rows
from interlock.plugins.attention.native.plan import NativePlan
from interlock.plugins.attention.native.rows import Shape
from interlock.plugins.attention.paged import PagedPlan, RowGroup
from interlock.plugins.attention.stored import RowWriter, new_rows, read, stored_groups


class GqaAttention(AttentionBackend):
    """Form "heads" for any H that is a multiple of K (arXiv 2305.13245), with draft trees, windows,
    soft caps and sinks; layers with a cap or sinks run outside torch's fused kernel.

    Short rows (decode, verification) are padded and run together; a long row runs alone, causally
    where it has no context. A window layer gathers only entries that some query can see.
    """

    def __init__(self, cache_dtype: str = "auto") -> None:
        self._cache_dtype = cache_dtype
        self.writer = RowWriter()

    def cache_groups(
        self, specs: tuple[AttentionSpec, ...], first_layer: int
    ) -> tuple[CacheGroup, ...]:
        """Planes "k" and "v", one row a head; ConfigError for a layer of another form."""
        require_form("gqa", "heads", specs, first_layer)
        return stored_groups(specs, first_layer, self._cache_dtype)

    def losses(self) -> Mapping[str, float]:
        """Of rows in fp8: relative root mean square error of the first rows of each layer."""
        return self.writer.losses()

    def plan(self, batch: AttentionBatch) -> PagedPlan:
        """Write slots now; gather slots and masks once per (page table, window)."""
        return PagedPlan(batch)

    def attend(
        self,
        spec: AttentionSpec,
        inputs: AttentionInput,
        plan: Any,
        table: int,
        planes: Mapping[str, Tensor],
    ) -> Tensor:
        """[T, H, V] in the queries' dtype."""
        assert isinstance(plan, PagedPlan)
        assert isinstance(inputs, HeadsInput)
        assert spec.sinks == (inputs.sinks_H is not None), "sinks are given exactly if declared"
        q_THD = inputs.q_THD
        out_THV = q_THD.new_empty(len(q_THD), spec.num_heads, spec.v_head_dim)
        for group in self._begun(spec, inputs, plan, table, planes, out_THV):
            slots_RS = group.slots_RS
            k_RSKD, v_RSKV = (read(planes, n, slots_RS).to(q_THD.dtype) for n in ("k", "v"))
            for tile in group.tiles:
                seen = slice(tile.first, tile.end)
                q_RQHD, k_seen, v_seen = q_THD[tile.tokens_RQ], k_RSKD[:, seen], v_RSKV[:, seen]
                args = (q_RQHD, k_seen, v_seen, tile.mask_RQS, tile.causal, spec.scale)
                if spec.softcap is None and inputs.sinks_H is None:
                    tile.scatter(masked_attention(*args), out_THV)
                else:
                    result = explicit_attention(*args, spec.softcap, inputs.sinks_H)
                    tile.scatter(result, out_THV)
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
        assert isinstance(plan, PagedPlan)
        assert isinstance(inputs, HeadsInput)
        self.writer.write(planes, plan.write_slots[table], new_rows(inputs, planes))

    def _begun(
        self, spec: AttentionSpec, inputs: HeadsInput, plan: PagedPlan, table: int,
        planes: Mapping[str, Tensor], _out_THV: Tensor,
    ) -> list[RowGroup]:  # fmt: skip
        """Put the new keys and values in their pages; the groups that are still to be answered."""
        self.store(spec, inputs, plan, table, planes)
        return plan.groups(table, spec.window)


class NativeGqaAttention(GqaAttention):
    """The same, by compiled kernels that copy no entry (see `native`). Long rows are theirs in bf16
    on processors that multiply it, else torch's.

    On a CPU, in a dtype of `native.rows.DTYPES`, and with planes in that dtype.
    """

    def plan(self, batch: AttentionBatch) -> NativePlan:
        """Write slots now; layouts once per (page table, shape of layer)."""
        return NativePlan(batch)

    def _begun(
        self, spec: AttentionSpec, inputs: HeadsInput, plan: PagedPlan, table: int,
        planes: Mapping[str, Tensor], out_THV: Tensor,
    ) -> list[RowGroup]:  # fmt: skip
        assert isinstance(plan, NativePlan)
        shape, pages = Shape.of(spec), (planes["k"], planes["v"])
        rows = plan.short_rows(table, shape, out_THV.dtype)
        rows.attend(inputs.q_THD, inputs.k_TKD, inputs.v_TKV, *pages, out_THV, inputs.sinks_H)
        if not runs_long_rows(out_THV.dtype):
            return plan.long_groups(table, spec.window)
        long = plan.long_rows(table, shape)
        if long is not None:
            long.attend(inputs.q_THD, *pages, out_THV, inputs.sinks_H)
        return []


class InvariantGqaAttention(GqaAttention):
    """The same, with bits that depend on a query's own tokens alone (see `invariant`). Slower."""

    def plan(self, batch: AttentionBatch) -> BlockPlan:
        """Write slots and chains now; blocks once per (page table, window, head group)."""
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
        assert isinstance(inputs, HeadsInput)
        self.store(spec, inputs, plan, table, planes)
        rows = [partial(read, planes, name) for name in ("k", "v")]
        out_THV = block_attention(spec, plan, table, inputs.q_THD, rows, inputs.sinks_H)
        return out_THV.to(inputs.q_THD.dtype)


def build(config: GqaConfig, context: BuildContext) -> GqaAttention:
    """The component's instance."""
    if builds_triton(config.kernel, context, heads_limit):
        from interlock.plugins.attention.triton_gqa import TritonGqaAttention, architecture_of

        return TritonGqaAttention(context.cache_dtype, architecture_of(context.device))
    kind = GqaAttention
    if context.batch_invariant:
        kind = InvariantGqaAttention
    elif runs_native(config.kernel, context):
        kind = NativeGqaAttention
    return kind(context.cache_dtype)
