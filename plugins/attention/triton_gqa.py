"""attention=gqa with Triton kernels: paged write, prefill, split decode and verification.

Legend: T tokens, S tokens of short rows, H query heads, K key/value heads, D and V head sizes.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from interlock.core.attention import AttentionBatch
from interlock.core.model import AttentionInput, AttentionSpec, HeadsInput
from interlock.plugins.attention.gqa import GqaAttention
from interlock.plugins.attention.kernels.decode import merge_kernel, split_kernel
from interlock.plugins.attention.kernels.online import (
    FP8_BY_BITS,
    NATIVE_FP8,
    NATIVE_FP8_FROM,
    NO_FP8,
)
from interlock.plugins.attention.kernels.prefill import prefill_kernel
from interlock.plugins.attention.kernels.ragged import RaggedPlan
from interlock.plugins.attention.kernels.tiles import (
    block_of,
    prefill_tiles,
    short_tiles,
    splits_of,
)
from interlock.plugins.attention.kernels.write import packed_heads, stored_bits, write_heads
from interlock.plugins.attention.stored import new_rows


@dataclass(frozen=True)
class _Layer:
    """What the kernels of one layer share."""

    spec: AttentionSpec
    plan: RaggedPlan
    table: int
    q_THD: Tensor
    out_THV: Tensor
    sinks_H: Tensor
    planes: tuple[Tensor, Tensor, Tensor, Tensor]
    """Keys, values, and their scales or what stands in their place."""
    fp8: int
    architecture: int

    @property
    def constants(self) -> dict[str, Any]:
        """Compile-time arguments of both attention kernels."""
        spec = self.spec
        return {
            "GROUP": spec.num_heads // spec.num_kv_heads, "HEADS": spec.num_kv_heads,
            "D": spec.head_dim, "V": spec.v_head_dim,
            "BLOCK_D": block_of(spec.head_dim), "BLOCK_V": block_of(spec.v_head_dim),
            "PAGE": self.plan.batch.page_size, "SCALE": spec.scale, "SOFTCAP": spec.softcap or 0.0,
            "WINDOW": spec.window or 0, "SINKS": spec.sinks, "FP8": self.fp8,
        }  # fmt: skip


class TritonGqaAttention(GqaAttention):
    """Form "heads" for any group size and head sizes up to 256, in fp16, bf16, fp32 and fp64.

    Long rows run in `prefill_kernel`, short ones (see `ragged`) in `split_kernel`, in one step.
    Planes of fp8 come with planes of scales, and new rows are quantised before they are read.
    """

    capturable = True

    def __init__(self, cache_dtype: str = "auto", architecture: int = 90) -> None:
        super().__init__(cache_dtype)
        self.architecture = architecture

    def plan(self, batch: AttentionBatch) -> RaggedPlan:  # type: ignore[override]  # not gathered rows
        """Rows on the device; layers share them."""
        return RaggedPlan(batch)

    def store(
        self,
        spec: AttentionSpec,
        inputs: AttentionInput,
        plan: Any,
        table: int,
        planes: Mapping[str, Tensor],
    ) -> None:
        """See AttentionBackend."""
        assert isinstance(plan, RaggedPlan)
        assert isinstance(inputs, HeadsInput)
        k, v = stored_bits(planes["k"]), stored_bits(planes["v"])
        scales = planes.get("k_scale"), planes.get("v_scale")
        with plan.on_device():
            write_heads(plan, table, inputs.k_TKD, inputs.v_TKV, k, v, *scales)
        if self.writer.measures(planes):
            self.writer.measure(planes, plan.slots(table), new_rows(inputs, planes))

    def attend(
        self,
        spec: AttentionSpec,
        inputs: AttentionInput,
        plan: Any,
        table: int,
        planes: Mapping[str, Tensor],
    ) -> Tensor:
        """[T, H, V] in the queries' dtype. Products of fp32 are exact ones, never TF32."""
        assert isinstance(plan, RaggedPlan)
        assert isinstance(inputs, HeadsInput)
        assert spec.sinks == (inputs.sinks_H is not None), "sinks are given exactly if declared"
        self.store(spec, inputs, plan, table, planes)
        k, v = stored_bits(planes["k"]), stored_bits(planes["v"])
        scales = planes.get("k_scale"), planes.get("v_scale")
        q_THD = packed_heads(inputs.q_THD)
        out_THV = q_THD.new_empty(len(q_THD), spec.num_heads, spec.v_head_dim)
        layer = _Layer(
            spec, plan, table, q_THD, out_THV,
            q_THD if inputs.sinks_H is None else inputs.sinks_H,
            (k, v, k if scales[0] is None else scales[0], v if scales[1] is None else scales[1]),
            fp8_reading(planes["k"], self.architecture), self.architecture,
        )  # fmt: skip
        with plan.on_device():
            if plan.long_rows:
                _prefill(layer)
            if len(plan.short_S):
                _decode(layer)
        return out_THV


def _prefill(layer: _Layer) -> None:
    spec, plan, constants = layer.spec, layer.plan, layer.constants
    size = max(constants["BLOCK_D"], constants["BLOCK_V"])
    tiles = prefill_tiles(constants["GROUP"], size, layer.q_THD.element_size(), layer.architecture)
    blocks = plan.long_blocks(tiles.rows // constants["GROUP"])
    pages = plan.batch.page_tables[layer.table]
    prefill_kernel[(len(blocks), spec.num_kv_heads)](
        layer.q_THD, layer.out_THV, *layer.planes, layer.sinks_H, blocks,
        plan.offsets_R1, plan.starts_R, pages, pages.stride(0), layer.q_THD.stride(0),
        **constants, BLOCK_M=tiles.rows, BLOCK_N=tiles.entries,
        num_warps=tiles.num_warps, num_stages=tiles.num_stages,
    )  # fmt: skip


def _decode(layer: _Layer) -> None:
    """Split and merge; one kernel where a row's entries are one program's work."""
    spec, plan, constants = layer.spec, layer.plan, layer.constants
    size = max(constants["BLOCK_D"], constants["BLOCK_V"])
    short = len(plan.short_S)
    one_token = short <= plan.short_rows
    tiles = short_tiles(constants["GROUP"], size, layer.q_THD.element_size(), one_token)
    programs = min(short, plan.short_rows + short * constants["GROUP"] // tiles.rows)
    entries = plan.entries(layer.table)
    seen = entries if spec.window is None else min(entries, spec.window + short)
    splits = splits_of(programs * spec.num_kv_heads, seen)
    wide = torch.promote_types(layer.q_THD.dtype, torch.float32)
    shape = (short, spec.num_heads, splits) if splits > 1 else (1, 1, 1)
    lse = layer.q_THD.new_empty(shape, dtype=wide)
    parts = layer.q_THD.new_empty((*shape, spec.v_head_dim), dtype=wide)
    pages = plan.batch.page_tables[layer.table]
    split_kernel[(short, spec.num_kv_heads, splits)](
        layer.q_THD, layer.out_THV, parts, lse, *layer.planes, layer.sinks_H, plan.short_S,
        plan.offsets_R1, plan.starts_R, plan.mask_R, plan.row_T, plan.batch.positions_T,
        plan.masks, pages, pages.stride(0), layer.q_THD.stride(0),
        **constants, TREES=plan.has_trees, SPLIT=splits > 1, BLOCK_M=tiles.rows,
        BLOCK_N=tiles.entries, num_warps=tiles.num_warps, num_stages=tiles.num_stages,
    )  # fmt: skip
    if splits > 1:
        merge_kernel[(short, spec.num_heads)](
            parts, lse, layer.out_THV, layer.sinks_H, plan.short_S, splits,
            heads=spec.num_heads, V=spec.v_head_dim, BLOCK_V=constants["BLOCK_V"],
            BLOCK_S=block_of(splits), SINKS=spec.sinks, num_warps=4,
        )  # fmt: skip


def fp8_reading(plane: Tensor, architecture: int) -> int:
    """How kernels read a plane: as it is, or fp8 natively or by bits, as the device can."""
    if plane.dtype != torch.float8_e4m3fn:
        return int(NO_FP8)
    return int(NATIVE_FP8 if architecture >= NATIVE_FP8_FROM else FP8_BY_BITS)


def architecture_of(device: torch.device | None) -> int:
    """Compute capability times ten; that of an H100 for the interpreter."""
    if device is None or device.type != "cuda":
        return 90
    major, minor = torch.cuda.get_device_capability(device)
    return major * 10 + minor
