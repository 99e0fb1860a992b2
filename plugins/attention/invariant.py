"""Attention whose bits depend on a query's own tokens alone.

Every product of a layer has one shape, every query and entry one place in it (see `blocks`), and
tiles are summed in the order of positions, so that neither other requests nor chunks, hits or
drafts change a bit. `products` looks after what a matrix library chooses by itself.

Legend: T tokens, B blocks, Q queries of a block, S entries of a tile, H query heads, K key/value
heads, G = H / K, M = Q * G, D and V head sizes (X: padded), n active blocks.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from interlock.core.model import AttentionSpec
from interlock.plugins.attention.blocks import TILE, BlockGroup, BlockPlan
from interlock.plugins.attention.products import PRODUCT_ROWS, padded, padded_size, product

Rows = Callable[[Tensor], Tensor]
"""Slots [n, S] -> what is stored there, [n, S, K, size]."""


def queries_of(spec: AttentionSpec) -> int:
    """Queries of a block, Q: a power of two that divides a tile."""
    group = spec.num_heads // spec.num_kv_heads
    return 1 << max(0, (PRODUCT_ROWS // group).bit_length() - 1)


def block_attention(
    spec: AttentionSpec,
    plan: BlockPlan,
    table: int,
    q_THD: Tensor,
    rows: Sequence[Rows],
    sinks_H: Tensor | None = None,
) -> Tensor:
    """[T, H, V] in fp32 or the queries' wider dtype.

    `rows` are those of K and V, or the one kind that is both key and value. Softmax is online over
    tiles (FlashAttention, arXiv 2205.14135, algorithm 1); its denominator is the sum of a value
    that is 1 in every entry. A sink starts the sum as an entry without a value would.
    """
    wide = torch.promote_types(q_THD.dtype, torch.float32)
    value_size = spec.v_head_dim if len(rows) > 1 else q_THD.shape[-1]
    out_THV = q_THD.new_empty(len(q_THD), spec.num_heads, value_size, dtype=wide)
    for group in plan.blocks(table, spec.window, queries_of(spec)):
        sums_BKMX = _sums(spec, group, q_THD, rows, value_size, sinks_H)
        result_BKMV = sums_BKMX[..., :value_size] / sums_BKMX[..., value_size, None]
        blocks, kv_heads, _, _ = result_BKMV.shape
        result_BKQGV = result_BKMV.view(blocks, kv_heads, group.tokens_BQ.shape[1], -1, value_size)
        result_NHV = result_BKQGV.transpose(1, 2).flatten(0, 1).flatten(1, 2)[group.real_N]
        out_THV.index_copy_(0, group.tokens_BQ.flatten()[group.real_N], result_NHV)
    return out_THV


def _sums(
    spec: AttentionSpec,
    group: BlockGroup,
    q_THD: Tensor,
    rows: Sequence[Rows],
    value_size: int,
    sinks_H: Tensor | None,
) -> Tensor:
    """[B, K, M, X]: sums of exp(score - most) times the values, and times 1 in column V."""
    wide, shared = torch.promote_types(q_THD.dtype, torch.float32), len(rows) == 1
    (blocks, queries), kv_heads, size = group.tokens_BQ.shape, spec.num_kv_heads, q_THD.shape[-1]
    q_BQKGD = q_THD[group.tokens_BQ].to(wide).view(blocks, queries, kv_heads, -1, size)
    q_BKMX = padded(q_BQKGD.transpose(1, 2).flatten(2, 3), size + shared)
    most_BKM1, sums_BKMX = _start(q_BKMX, value_size, sinks_H)
    for step in group.steps:
        active = len(step.slots_nS)
        values_nKSX = _tile(rows[-1](step.slots_nS), wide, with_one=True)
        keys_nKSX = values_nKSX if shared else _tile(rows[0](step.slots_nS), wide)
        scores_nKMS = product(q_BKMX[:active], keys_nKSX.mT).mul_(spec.scale)
        if spec.softcap is not None:
            scores_nKMS.div_(spec.softcap).tanh_().mul_(spec.softcap)
        scores_nKQGS = scores_nKMS.view(active, kv_heads, queries, -1, TILE)
        scores_nKQGS.masked_fill_(step.hidden_nQS[:, None, :, None], -torch.inf)
        most_nKM1 = torch.maximum(most_BKM1[:active], scores_nKMS.amax(-1, keepdim=True))
        weights_nKMS = scores_nKMS.sub_(most_nKM1).exp_()
        shrink_nKM1 = (most_BKM1[:active] - most_nKM1).exp_()
        sums_BKMX[:active].mul_(shrink_nKM1).add_(product(weights_nKMS, values_nKSX))
        most_BKM1[:active] = most_nKM1
    return sums_BKMX


def _start(q_BKMX: Tensor, value_size: int, sinks_H: Tensor | None) -> tuple[Tensor, Tensor]:
    """Largest scores so far and sums so far: nothing yet, or the sink alone, which weighs 1."""
    blocks, kv_heads, rows, _ = q_BKMX.shape
    # Finite, so that a tile of which a query sees nothing leaves it as it was, without a NaN.
    least = torch.finfo(q_BKMX.dtype).min
    most_BKM1 = q_BKMX.new_full((blocks, kv_heads, rows, 1), least)
    sums_BKMX = q_BKMX.new_zeros(blocks, kv_heads, rows, padded_size(value_size + 1))
    if sinks_H is not None:
        sinks_KG = sinks_H.to(q_BKMX.dtype).clamp(min=least).view(kv_heads, -1)
        most_BKM1.copy_(sinks_KG.repeat(1, rows // sinks_KG.shape[1])[None, ..., None])
        sums_BKMX[..., value_size] = 1
    return most_BKM1, sums_BKMX


def _tile(rows_nSKD: Tensor, dtype: torch.dtype, with_one: bool = False) -> Tensor:
    """[n, K, S, X]: the entries of a tile, if asked with a 1 after each, padded with zeros."""
    blocks, entries, kv_heads, size = rows_nSKD.shape
    tile_nKSX = rows_nSKD.new_zeros(
        blocks, kv_heads, entries, padded_size(size + with_one), dtype=dtype
    )
    tile_nKSX[..., :size] = rows_nSKD.transpose(1, 2)
    if with_one:
        tile_nKSX[..., size] = 1
    return tile_nKSX
