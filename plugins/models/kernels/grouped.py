"""Grouped products: rows in groups, each group times the matrix of its expert, in one launch.

Two layouts of the rows. *Contiguous*: sorted by expert, one group after the other; tiles of rows
are cut so that none spans two experts (as DeepGEMM's contiguous layout, without its padding).
*Masked*: every expert has room for `capacity` rows, and a count on the device says how many there
are. Grids depend on sizes alone, so both can be captured in a CUDA graph.

Legend: X experts, N rows, M rows of a tile, E inputs, F outputs.
"""

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from interlock.plugins.models.kernels import INTERPRETED


@triton.jit
def grouped_kernel(
    x, weight, bias, out, rows, tile_expert, tile_row, ends,
    inputs, outputs, capacity,
    HAS_BIAS: tl.constexpr, GATHERED: tl.constexpr, MASKED: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_F: tl.constexpr, BLOCK_E: tl.constexpr, WIDEN: tl.constexpr,
):  # fmt: skip
    """out[n] = x[rows[n]] @ weight[expert of n].T + bias[expert of n] for the rows of one tile.

    Row n of `out` is in the layout; that of `x` too, unless GATHERED. Rows past the end of their
    expert's are neither read nor written. WIDEN: multiply in fp32 (as the interpreter must).
    """
    tile, part = tl.program_id(0), tl.program_id(1)
    if MASKED:
        tiles = tl.cdiv(capacity, BLOCK_M)
        expert = tile // tiles
        first = expert * capacity + (tile % tiles) * BLOCK_M
        end = expert * capacity + tl.load(ends + expert)
    else:
        expert = tl.load(tile_expert + tile)
        first = tl.load(tile_row + tile)
        end = tl.load(ends + expert)
    if first >= end:
        return
    n_M = first + tl.arange(0, BLOCK_M)
    real_M = n_M < end
    source_M = n_M
    if GATHERED:
        source_M = tl.load(rows + n_M, mask=real_M, other=0)
    f_F = part * BLOCK_F + tl.arange(0, BLOCK_F)
    here_F = f_F < outputs
    e_E = tl.arange(0, BLOCK_E)
    x_ME = x + source_M.to(tl.int64)[:, None] * inputs + e_E[None, :]
    matrix = weight + expert.to(tl.int64) * outputs * inputs
    w_EF = matrix + f_F.to(tl.int64)[None, :] * inputs + e_E[:, None]
    sums_MF = tl.zeros((BLOCK_M, BLOCK_F), dtype=tl.float32)
    for begin in range(0, inputs, BLOCK_E):
        inside_E = e_E < inputs - begin
        a_ME = tl.load(x_ME + begin, mask=real_M[:, None] & inside_E[None, :], other=0.0)
        b_EF = tl.load(w_EF + begin, mask=inside_E[:, None] & here_F[None, :], other=0.0)
        if WIDEN:
            a_ME = a_ME.to(tl.float32)
            b_EF = b_EF.to(tl.float32)
        sums_MF = tl.dot(a_ME, b_EF, sums_MF, input_precision="ieee")
    if HAS_BIAS:
        b_F = tl.load(bias + expert.to(tl.int64) * outputs + f_F, mask=here_F, other=0.0)
        sums_MF += b_F.to(tl.float32)[None, :]
    place_MF = out + n_M.to(tl.int64)[:, None] * outputs + f_F[None, :]
    tl.store(place_MF, sums_MF.to(out.dtype.element_ty), mask=real_M[:, None] & here_F[None, :])


class Blocks(NamedTuple):
    """Sizes of one program's tile, and its warps and pipeline stages."""

    rows: int
    outputs: int
    inputs: int
    warps: int
    stages: int


FEW, MANY = Blocks(16, 64, 128, 4, 3), Blocks(64, 128, 64, 4, 3)
"""For 16 and 32-bit inputs of rows by the handful, and of prompts."""
FEW_WIDE, MANY_WIDE = Blocks(16, 32, 64, 4, 2), Blocks(32, 64, 32, 4, 2)
"""The same for fp32, which is multiplied without tensor cores."""


def blocks_of(dtype: torch.dtype, masked: bool) -> Blocks:
    """The tile of a layout and dtype."""
    if dtype == torch.float32:
        return FEW_WIDE if masked else MANY_WIDE
    return FEW if masked else MANY


class Layout(NamedTuple):
    """Where the rows of a step are, for the products of all its experts.

    `slots_TJ` is the row of each token's choice; the rows of a choice that belongs to another rank
    are not computed. `rows_N` is the token of each row.
    """

    masked: bool
    num_rows: int
    capacity: int
    num_tiles: int
    slots_TJ: Tensor
    rows_N: Tensor
    ends_X: Tensor
    """Contiguous: where an expert's rows end. Masked: how many it has."""
    tile_expert_M: Tensor
    tile_row_M: Tensor


def masked_layout(experts_TJ: Tensor, experts: int, dtype: torch.dtype) -> Layout:
    """Room for every token at each expert; `experts` in `experts_TJ` stands for another rank's.

    A token chooses an expert once, so that no expert can have more rows. No device read.
    """
    tokens = len(experts_TJ)
    hits_TX = experts_TJ.new_zeros(tokens, experts + 1).scatter_(1, experts_TJ, 1)
    places_TJ = (hits_TX.cumsum(0) - 1).gather(1, experts_TJ)
    slots_TJ = experts_TJ * tokens + places_TJ.clamp(0, tokens - 1)
    rows_N = experts_TJ.new_zeros((experts + 1) * tokens)
    token_T1 = torch.arange(tokens, device=experts_TJ.device)[:, None]
    rows_N[slots_TJ.flatten()] = token_T1.expand_as(slots_TJ).flatten()
    counts_X = hits_TX.sum(0)
    per_expert = -(-tokens // blocks_of(dtype, masked=True).rows)
    return Layout(
        True, experts * tokens, tokens, experts * per_expert, slots_TJ, rows_N, counts_X, counts_X,
        counts_X,
    )  # fmt: skip


def contiguous_layout(experts_TJ: Tensor, experts: int, dtype: torch.dtype) -> Layout:
    """Rows sorted by expert. No device read: there are as many tiles as there could be."""
    block, device = blocks_of(dtype, masked=False).rows, experts_TJ.device
    sorted_N, order_N = experts_TJ.flatten().sort(stable=True)
    rows = len(order_N)
    ends_X = torch.searchsorted(sorted_N, torch.arange(experts, device=device), right=True)
    counts_X = ends_X.diff(prepend=ends_X.new_zeros(1))
    tiles_X = (counts_X + block - 1) // block
    tile_ends_X = tiles_X.cumsum(0)
    num_tiles = rows // block + min(rows, experts)
    tile_M = torch.arange(num_tiles, device=device)
    expert_M = torch.searchsorted(tile_ends_X, tile_M, right=True).clamp(max=experts - 1)
    place_M = tile_M - (tile_ends_X - tiles_X)[expert_M]
    row_M = (ends_X - counts_X)[expert_M] + place_M * block
    row_M = torch.where(tile_M < tile_ends_X[-1], row_M, rows)
    slots_N = torch.empty_like(order_N)
    slots_N[order_N] = torch.arange(rows, device=device)
    return Layout(
        False, rows, 0, num_tiles, slots_N.view_as(experts_TJ), order_N // experts_TJ.shape[1],
        ends_X, expert_M, row_M,
    )  # fmt: skip


def grouped_product(
    x: Tensor, weight_XFE: Tensor, bias_XF: Tensor | None, layout: Layout, gathered: bool
) -> Tensor:
    """[N, F]: each row times the matrix of its expert; rows that nobody has are not written.

    `gathered`: `x` holds the tokens [T, E]; else the rows of the layout [N, E].
    """
    outputs, inputs = weight_XFE.shape[1:]
    blocks = blocks_of(x.dtype, layout.masked)
    out_NF = x.new_empty(layout.num_rows, outputs)
    grid = layout.num_tiles, triton.cdiv(outputs, blocks.outputs)
    arguments: dict[str, Any] = dict(
        x=x.contiguous(), weight=weight_XFE, bias=weight_XFE if bias_XF is None else bias_XF,
        out=out_NF, rows=layout.rows_N, tile_expert=layout.tile_expert_M,
        tile_row=layout.tile_row_M, ends=layout.ends_X, inputs=inputs, outputs=outputs,
        capacity=layout.capacity,
    )  # fmt: skip
    grouped_kernel[grid](
        **arguments, HAS_BIAS=bias_XF is not None, GATHERED=gathered, MASKED=layout.masked,
        BLOCK_M=blocks.rows, BLOCK_F=blocks.outputs, BLOCK_E=blocks.inputs, WIDEN=INTERPRETED,
        num_warps=blocks.warps, num_stages=blocks.stages,
    )  # fmt: skip
    return out_NF
