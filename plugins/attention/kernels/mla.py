"""Launches of the latent attention kernels.

Legend: T tokens, H heads, C latent rank, N and P head parts without and with rotary embedding, V
value head size, S splits, P pages and B tokens in a page (of planes).
"""

from collections.abc import Mapping
from functools import cache
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from interlock.core.model import AttentionSpec
from interlock.plugins.attention.kernels import INTERPRETED
from interlock.plugins.attention.kernels.mla_absorbed import absorbed_kernel, merge_kernel
from interlock.plugins.attention.kernels.mla_expanded import expanded_kernel
from interlock.plugins.attention.kernels.ragged import RaggedPlan

LEAST_SHARE = 128
"""Entries below which a split costs more than it saves."""
MOST_SPLITS = 64
WIDE_RANK = 256
"""Above this rank, registers allow few entries and queries a tile."""
INTERPRETED_PROCESSORS = 4


class Tile(NamedTuple):
    """How a kernel is cut and pipelined."""

    queries: int
    entries: int
    warps: int
    stages: int


def absorbed_tile(
    queries: int, rank: int, dtype: torch.dtype, capability: int, fp8: bool, trees: bool
) -> Tile:
    """The tile for rows of about so many queries (tokens times heads), without spilled registers.

    An entry's row is found by its page's number, which is read before: rows are two loads deep in
    the pipeline, so five stages keep two tiles of rows in shared memory. `capability`: times ten.
    """
    if dtype in (torch.float32, torch.float64):
        return Tile(16, 16, 8, 1) if fp8 or dtype == torch.float64 else Tile(16, 16, 4, 2)
    if rank <= WIDE_RANK:
        return Tile(32 if queries >= 32 else 16, 32 if fp8 else 64, 8 if fp8 else 4, 3)
    if fp8:  # decoded rows are in registers, as sums are
        large = queries >= 64 and capability == 90 and not trees
        return Tile(64 if large else 16, 32, 8, 5)
    if queries < 32:
        return Tile(16, 32, 4, 5)
    # On sm_100, tiles of 64 go through tensor memory, whose copies to registers spill.
    large = queries >= 64 and capability < 100 and not trees
    return Tile(64 if large else 32, 32, 8, 5)


def splits_for(tiles: int, entries: int, processors: int) -> int:
    """Shares that `entries` are divided into so that every processor has two programs."""
    wanted = -(-2 * processors // max(1, tiles))
    return max(1, min(wanted, entries // LEAST_SHARE, MOST_SPLITS))


@cache
def _device_facts(device: torch.device) -> tuple[int, int]:
    """(processors, compute capability times ten)."""
    if device.type != "cuda":
        return INTERPRETED_PROCESSORS, 90
    facts = torch.cuda.get_device_properties(device)
    return facts.multi_processor_count, facts.major * 10 + facts.minor


def absorbed_attention(
    spec: AttentionSpec,
    plan: RaggedPlan,
    table: int,
    q_THC: Tensor,
    q_rope_THP: Tensor,
    planes: Mapping[str, Tensor],
    tile: Tile | None = None,
    splits: int | None = None,
) -> Tensor:
    """Sums of latents [T, H, C] in the queries' dtype, for queries in latent space (contiguous)."""
    tokens, heads, rank = q_THC.shape
    out_THC = torch.empty_like(q_THC)
    if not tokens:
        return out_THC
    processors, capability = _device_facts(q_THC.device)
    rows, pages = plan.batch.num_rows, plan.batch.page_tables[table]
    tile = tile or absorbed_tile(
        heads * tokens // rows, rank, q_THC.dtype, capability, "latent_scale" in planes,
        plan.has_trees,
    )  # fmt: skip
    tiles = tokens * heads // tile.queries + rows
    splits = splits or splits_for(tiles, plan.entries(table), processors)
    wide = torch.promote_types(q_THC.dtype, torch.float32)
    parts, lse = out_THC, out_THC
    if splits > 1:
        parts = q_THC.new_empty(tokens, heads, splits, rank, dtype=wide)
        lse = q_THC.new_empty(tokens, heads, splits, dtype=wide)
    latent, rope, scales = stored_parts(planes, rank)
    absorbed_kernel[(tiles, splits)](
        q_THC, q_rope_THP, latent, rope, latent if scales is None else scales, parts, lse,
        plan.offsets_R1, plan.starts_R, plan.mask_R, plan.masks, plan.batch.positions_T, pages,
        rows, splits, pages.stride(0), latent.stride(1), rope.stride(1),
        HEADS=heads, RANK=rank, ROPE=spec.rope_dim,
        PARTS=0 if scales is None else scales.shape[-1], PAGE=plan.batch.page_size,
        SCALE=spec.scale, WINDOW=spec.window or 0, TREES=plan.has_trees, SPLIT=splits > 1,
        OPERAND=operand_type(q_THC.dtype), ACC=TYPES[wide],
        BLOCK_M=tile.queries, BLOCK_N=tile.entries, BLOCK_C=block(rank),
        BLOCK_P=block(spec.rope_dim), num_warps=tile.warps, num_stages=tile.stages,
    )  # fmt: skip
    if splits > 1:
        merge_kernel[(tokens * heads,)](
            parts, lse, out_THC, splits, SIZE=rank, BLOCK=block(rank),
            SPLITS=triton.next_power_of_2(splits), num_warps=4,
        )  # fmt: skip
    return out_THC


TYPES = {
    torch.float64: tl.float64,
    torch.float32: tl.float32,
    torch.float16: tl.float16,
    torch.bfloat16: tl.bfloat16,
}


def operand_type(dtype: torch.dtype) -> tl.dtype:
    """In what products are computed: in the interpreter those of bf16 are wrong."""
    return tl.float32 if INTERPRETED and dtype == torch.bfloat16 else TYPES[dtype]


def block(size: int) -> int:
    """The power of two that covers `size`, at least what products need."""
    return max(16, 1 << (size - 1).bit_length())


def stored_parts(planes: Mapping[str, Tensor], rank: int) -> tuple[Tensor, Tensor, Tensor | None]:
    """Latents [P, B, C] (e4m3 as bits), rotary keys [P, B, R], and scales [P, B, parts] of e4m3."""
    latent = planes["latent"]
    if "latent_scale" in planes:
        return latent.view(torch.uint8), planes["rope"], planes["latent_scale"]
    return latent, latent[..., rank:], None


def expanded_tile(size: int, dtype: torch.dtype, capability: int) -> Tile:
    """The tile for keys of `size` numbers, without spilled registers. Queries are tokens."""
    if dtype in (torch.float32, torch.float64):
        return Tile(16, 16, 4, 2) if size > 128 else Tile(32, 32, 4, 2)
    if size <= 128:
        return Tile(64, 64, 4, 3)
    return Tile(64 if capability < 90 else 128, 64, 8, 3)


class Expanded(NamedTuple):
    """Entries of all rows end to end, for some heads: k [S, H, N], rotary [S, P], v [S, H, V]."""

    k_SHN: Tensor
    k_SP: Tensor
    v_SHV: Tensor


def expanded_attention(
    spec: AttentionSpec,
    plan: RaggedPlan,
    base_R: Tensor,
    q_THN: Tensor,
    q_THP: Tensor,
    entries: Expanded,
    out_THV: Tensor,
    tile: Tile | None = None,
) -> None:
    """Fill out [T, H, V] for the heads at hand; entry e of row r is expanded in base_R[r] + e.

    Heads lie side by side in every tensor; tokens and entries may be apart.
    """
    tokens, heads, nope = q_THN.shape
    wide = torch.promote_types(q_THN.dtype, torch.float32)
    _, capability = _device_facts(q_THN.device)
    tile = tile or expanded_tile(nope + spec.rope_dim, q_THN.dtype, capability)
    rows = plan.batch.num_rows
    expanded_kernel[(tokens // tile.queries + rows, heads)](
        q_THN, q_THP, *entries, out_THV,
        plan.offsets_R1, plan.starts_R, base_R, plan.mask_R, plan.masks, plan.batch.positions_T,
        rows, q_THN.stride(0), q_THP.stride(0), entries.k_SHN.stride(0), entries.v_SHV.stride(0),
        entries.k_SP.stride(0), out_THV.stride(0),
        NOPE=nope, ROPE=spec.rope_dim, VALUE=spec.v_head_dim, SCALE=spec.scale,
        WINDOW=spec.window or 0, TREES=plan.has_trees,
        OPERAND=operand_type(q_THN.dtype), ACC=TYPES[wide],
        BLOCK_M=tile.queries, BLOCK_E=tile.entries, BLOCK_N=block(nope),
        BLOCK_P=block(spec.rope_dim), BLOCK_V=block(spec.v_head_dim),
        num_warps=tile.warps, num_stages=tile.stages,
    )  # fmt: skip
