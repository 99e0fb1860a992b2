"""Softmax attention of a block of queries over a range of paged entries, one tile at a time.

Online softmax (FlashAttention, arXiv 2205.14135, algorithm 1) in base 2: `most` is the largest
score so far times log2(e), `total` the sum of 2^(score - most), `sums` that of the weighted values.
Tiles of which a query sees nothing leave its numbers as they were. Sums are fp32, or fp64 of fp64
inputs. All query heads of one key/value head are rows of a block: row m is query m // GROUP, head
m % GROUP.

Legend: M rows of a block, N entries of a tile, D and V head sizes (padded to powers of two).
"""

import triton
import triton.language as tl

from interlock.plugins.attention.kernels import INTERPRETED
from interlock.plugins.attention.kernels.fp8 import decoded

WIDE = tl.constexpr(INTERPRETED)
"""The interpreter multiplies the bits of bf16 numbers: there, operands are widened first."""
LOG2E = tl.constexpr(1.4426950408889634)
LN2 = tl.constexpr(0.6931471805599453)
FP8_MOST = tl.constexpr(448.0)
NO_FP8 = tl.constexpr(0)
NATIVE_FP8 = tl.constexpr(1)
FP8_BY_BITS = tl.constexpr(2)
NATIVE_FP8_FROM = 89
"""Compute capability times ten."""


@triton.jit
def operand(x, like, FP8: tl.constexpr):
    """Loaded keys or values as a factor of a product with `like`."""
    if FP8 == FP8_BY_BITS:
        x = decoded(x)
    elif FP8 == NATIVE_FP8:
        x = x.to(tl.float8e4nv, bitcast=True)
    return x.to(like.dtype)


@triton.jit
def load_queries(q, stride, token_M, head_M, real_M, SIZE: tl.constexpr, BLOCK: tl.constexpr):
    """[M, D], zeros where not real."""
    at = tl.arange(0, BLOCK)
    place = token_M.to(tl.int64)[:, None] * stride + head_M[:, None] * SIZE + at[None, :]
    q_MD = tl.load(q + place, mask=real_M[:, None] & (at < SIZE)[None, :], other=0.0)
    if WIDE and q_MD.dtype != tl.float64:
        q_MD = q_MD.to(tl.float32)
    return q_MD


@triton.jit
def empty_sums(q_MD, BLOCK_M: tl.constexpr, BLOCK_V: tl.constexpr):
    """most, total and sums of no entries."""
    dtype: tl.constexpr = tl.float64 if q_MD.dtype == tl.float64 else tl.float32
    most_M = tl.full([BLOCK_M], float("-inf"), dtype)
    return most_M, tl.zeros([BLOCK_M], dtype), tl.zeros([BLOCK_M, BLOCK_V], dtype)


@triton.jit
def scaled(scores_MN, SCALE: tl.constexpr, SOFTCAP: tl.constexpr):
    """log2(e) times the scores: q.k * SCALE, or c tanh(q.k * SCALE / c). tanh is made of exp."""
    if SOFTCAP > 0.0:
        power = tl.exp2(tl.abs(scores_MN) * (-2.0 * LOG2E * SCALE / SOFTCAP))  # at most 1
        size = (1.0 - power) / (1.0 + power) * (SOFTCAP * LOG2E)
        scores_MN = tl.where(scores_MN < 0.0, -size, size)
    else:
        scores_MN = scores_MN * (SCALE * LOG2E)
    return scores_MN


@triton.jit
def seen_entries(entry_N, real_N, start, query_M, position_M, masks, mask_at, new, positions,
                 WINDOW: tl.constexpr, TREES: tl.constexpr):  # fmt: skip
    """bool [M, N]: what each query sees. `mask_at` is where the row's tree is in masks, or -1.

    `positions` points to the row's first new token.
    """
    chain = entry_N[None, :] <= position_M[:, None]
    if TREES:
        later_N = entry_N - start
        is_new_N = (later_N >= 0) & (later_N < new) & (mask_at >= 0)
        place = mask_at + query_M[:, None] * new + later_N[None, :]
        known = is_new_N[None, :] & (query_M < new)[:, None]
        bit = tl.load(masks + place, mask=known, other=0)
        chain = tl.where(mask_at >= 0, (later_N < 0)[None, :] | (bit != 0), chain)
        entry_N = tl.where(
            is_new_N, tl.load(positions + later_N, mask=is_new_N, other=0), entry_N.to(tl.int64)
        )
    seen = chain & real_N[None, :]
    if WINDOW > 0:
        seen = seen & (entry_N[None, :] > position_M[:, None] - WINDOW)
    return seen


@triton.jit
def scan(q_MD, most_M, total_M, sums_MV, k_plane, v_plane, k_scale, v_scale, pages, head,
         first, end, start, query_M, position_M, masks, mask_at, new, positions,
         HEADS: tl.constexpr, D: tl.constexpr, V: tl.constexpr, BLOCK_D: tl.constexpr,
         BLOCK_V: tl.constexpr, BLOCK_N: tl.constexpr, PAGE: tl.constexpr, SCALE: tl.constexpr,
         SOFTCAP: tl.constexpr, WINDOW: tl.constexpr, TREES: tl.constexpr, FP8: tl.constexpr,
         HIDES: tl.constexpr):  # fmt: skip
    """most, total and sums with entries first .. end of the row added.

    HIDES=False promises that every query sees all of them and that they are whole tiles.
    `pages` points to the row's page table; nothing past `end` is loaded.
    """
    at_D = tl.arange(0, BLOCK_D)
    at_V = tl.arange(0, BLOCK_V)
    for begin in range(first, end, BLOCK_N):
        entry_N = begin + tl.arange(0, BLOCK_N)
        real_N = entry_N < end if HIDES else entry_N >= 0
        page_N = tl.load(pages + entry_N // PAGE, mask=real_N, other=0).to(tl.int64)
        row_N = (page_N * PAGE + entry_N % PAGE) * HEADS + head
        k_real = real_N[:, None] & (at_D < D)[None, :]
        k_ND = tl.load(k_plane + row_N[:, None] * D + at_D[None, :], mask=k_real, other=0)
        k_ND = operand(k_ND, q_MD, FP8)
        scores_MN = tl.dot(q_MD, tl.trans(k_ND), input_precision="ieee", out_dtype=most_M.dtype)
        if FP8 != NO_FP8:
            scores_MN *= tl.load(k_scale + row_N, mask=real_N, other=0.0)[None, :]
        scores_MN = scaled(scores_MN, SCALE, SOFTCAP)
        if HIDES:
            seen_MN = seen_entries(entry_N, real_N, start, query_M, position_M, masks, mask_at,
                                   new, positions, WINDOW, TREES)  # fmt: skip
            scores_MN = tl.where(seen_MN, scores_MN, float("-inf"))
        above_M = tl.maximum(most_M, tl.max(scores_MN, axis=1))
        base_M = tl.where(above_M == float("-inf"), 0.0, above_M)
        weights_MN = tl.exp2(scores_MN - base_M[:, None])
        shrink_M = tl.exp2(most_M - base_M)
        total_M = total_M * shrink_M + tl.sum(weights_MN, axis=1)
        if FP8 != NO_FP8:  # 448 times the scale: fp16 weights then stay in their normal range
            v_scale_N = tl.load(v_scale + row_N, mask=real_N, other=0.0) * FP8_MOST
            weights_MN *= v_scale_N[None, :]
        v_real = real_N[:, None] & (at_V < V)[None, :]
        v_NV = tl.load(v_plane + row_N[:, None] * V + at_V[None, :], mask=v_real, other=0)
        v_NV = operand(v_NV, q_MD, FP8)
        product_MV = tl.dot(
            weights_MN.to(q_MD.dtype), v_NV, input_precision="ieee", out_dtype=most_M.dtype
        )
        sums_MV = sums_MV * shrink_M[:, None] + product_MV
        most_M = above_M
    return most_M, total_M, sums_MV


@triton.jit
def with_sink(most_M, total_M, sums_MV, sinks, head_M, real_M):
    """A sink joins the total and has no value."""
    sink_M = tl.load(sinks + head_M, mask=real_M, other=0.0).to(most_M.dtype) * LOG2E
    above_M = tl.maximum(most_M, sink_M)
    base_M = tl.where(above_M == float("-inf"), 0.0, above_M)
    shrink_M = tl.exp2(most_M - base_M)
    total_M = total_M * shrink_M + tl.exp2(sink_M - base_M)
    return above_M, total_M, sums_MV * shrink_M[:, None]


@triton.jit
def average(total_M, sums_MV, FP8: tl.constexpr):
    """[M, V]: zeros where nothing was seen."""
    some_M = tl.where(total_M == 0.0, 1.0, total_M)
    if FP8 != NO_FP8:
        some_M *= FP8_MOST
    return sums_MV / some_M[:, None]
