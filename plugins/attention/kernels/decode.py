"""Paged decode and verification: short rows, their entries split among programs and merged.

Grid of `split_kernel`: (tokens of short rows, key/value heads, splits); of `merge_kernel`: (tokens
of short rows, query heads). Splits are parts of what a row sees, so that rows of any length fill
the device; their number is the launch's. Parts are merged by their log-sum-exp (natural), and a
sink joins there, once.
"""

import triton
import triton.language as tl

from interlock.plugins.attention.kernels.online import (
    LN2,
    LOG2E,
    average,
    empty_sums,
    load_queries,
    scan,
    with_sink,
)


@triton.jit(do_not_specialize=["table_stride"])
def split_kernel(q, out, parts, lse, k_plane, v_plane, k_scale, v_scale, sinks, short_S, offsets_R1,
                 starts_R, mask_R, row_T, positions, masks, table, table_stride, q_stride,
                 GROUP: tl.constexpr, HEADS: tl.constexpr, D: tl.constexpr, V: tl.constexpr,
                 BLOCK_D: tl.constexpr, BLOCK_V: tl.constexpr, BLOCK_M: tl.constexpr,
                 BLOCK_N: tl.constexpr, PAGE: tl.constexpr, SCALE: tl.constexpr,
                 SOFTCAP: tl.constexpr, WINDOW: tl.constexpr, SINKS: tl.constexpr,
                 TREES: tl.constexpr, FP8: tl.constexpr, SPLIT: tl.constexpr):  # fmt: skip
    """The queries from this token on, up to BLOCK_M // GROUP of its row; others' programs end.

    SPLIT: writes parts [S, H, splits, V] and lse [S, H, splits]; else the results, into out.
    """
    queries: tl.constexpr = BLOCK_M // GROUP
    ordinal = tl.program_id(0)
    head = tl.program_id(1)
    token = tl.load(short_S + ordinal)
    row = tl.load(row_T + token)
    first_token = tl.load(offsets_R1 + row)
    query = token - first_token
    if query % queries != 0:
        return
    new = tl.load(offsets_R1 + row + 1) - first_token
    start = tl.load(starts_R + row)
    pages = table + row.to(tl.int64) * table_stride

    at_M = tl.arange(0, BLOCK_M)
    ahead_M = at_M // GROUP
    query_M = query + ahead_M
    head_M = head * GROUP + at_M % GROUP
    real_M = (query_M < new) & (at_M < queries * GROUP)
    mask_at = tl.full([], -1, tl.int32)
    end = start + tl.minimum(query + queries, new)
    first = start + query
    position_M = start + query_M
    if TREES:
        mask_at = tl.load(mask_R + row)
        if mask_at >= 0:
            end = start + new
            first = start  # no node is nearer to the root than the first new token
        known = tl.load(positions + first_token + query_M, mask=query_M < new, other=0)
        position_M = tl.where(mask_at >= 0, known.to(tl.int32), position_M)
    first = tl.maximum(first - WINDOW + 1, 0) if WINDOW > 0 else 0
    size = tl.cdiv(tl.cdiv(end - first, tl.num_programs(2)), BLOCK_N) * BLOCK_N
    first += tl.program_id(2) * size
    end = tl.minimum(end, first + size)

    q_MD = load_queries(q, q_stride, token + ahead_M, head_M, real_M, D, BLOCK_D)
    most_M, total_M, sums_MV = empty_sums(q_MD, BLOCK_M, BLOCK_V)
    most_M, total_M, sums_MV = scan(
        q_MD, most_M, total_M, sums_MV, k_plane, v_plane, k_scale, v_scale, pages, head,
        first, end, start, query_M, position_M, masks, mask_at, new, positions + first_token,
        HEADS, D, V, BLOCK_D, BLOCK_V, BLOCK_N, PAGE, SCALE, SOFTCAP, WINDOW, TREES, FP8, True,
    )  # fmt: skip
    at_V = tl.arange(0, BLOCK_V)
    kept = real_M[:, None] & (at_V < V)[None, :]
    if SPLIT:
        result_MV = average(total_M, sums_MV, FP8)
        place_M = (ordinal + ahead_M).to(tl.int64) * (HEADS * GROUP) + head_M
        place_M = place_M * tl.num_programs(2) + tl.program_id(2)
        some_M = tl.where(total_M == 0.0, 1.0, total_M)
        seen_M = tl.where(total_M == 0.0, float("-inf"), (most_M + tl.log2(some_M)) * LN2)
        tl.store(lse + place_M, seen_M, mask=real_M)
        tl.store(parts + place_M[:, None] * V + at_V[None, :], result_MV, mask=kept)
    else:
        if SINKS:
            most_M, total_M, sums_MV = with_sink(most_M, total_M, sums_MV, sinks, head_M, real_M)
        result_MV = average(total_M, sums_MV, FP8)
        place_M = (token + ahead_M).to(tl.int64) * (HEADS * GROUP) + head_M
        place = place_M[:, None] * V + at_V[None, :]
        tl.store(out + place, result_MV.to(out.dtype.element_ty), mask=kept)


@triton.jit(do_not_specialize=["splits"])
def merge_kernel(parts, lse, out, sinks, short_S, splits, heads: tl.constexpr, V: tl.constexpr,
                 BLOCK_V: tl.constexpr, BLOCK_S: tl.constexpr, SINKS: tl.constexpr):  # fmt: skip
    """One head's result of one token: parts weighted by exp(lse), the sink by exp(sink) alone."""
    ordinal = tl.program_id(0)
    head = tl.program_id(1)
    at_S = tl.arange(0, BLOCK_S)
    at_V = tl.arange(0, BLOCK_V)
    real_S = at_S < splits
    place = (ordinal.to(tl.int64) * heads + head) * splits
    lse_S = tl.load(lse + place + at_S, mask=real_S, other=float("-inf")) * LOG2E
    most = tl.max(lse_S, axis=0)
    if SINKS:
        sink = tl.load(sinks + head).to(lse_S.dtype) * LOG2E
        most = tl.maximum(most, sink)
    most = tl.where(most == float("-inf"), 0.0, most)
    weights_S = tl.exp2(lse_S - most)
    total = tl.sum(weights_S, axis=0)
    if SINKS:
        total += tl.exp2(sink - most)
    real = real_S[:, None] & (at_V < V)[None, :]
    part_SV = tl.load(parts + (place + at_S)[:, None] * V + at_V[None, :], mask=real, other=0.0)
    result_V = tl.sum(part_SV * weights_S[:, None], axis=0) / tl.where(total == 0.0, 1.0, total)
    token = tl.load(short_S + ordinal).to(tl.int64)
    tl.store(
        out + (token * heads + head) * V + at_V, result_V.to(out.dtype.element_ty), mask=at_V < V
    )
