"""Paged prefill: long ragged rows, each causal against its own context read from its pages.

The row's new keys and values are in their pages already, so that the context and the new tokens are
one range of entries. Grid: (blocks of queries, key/value heads).
"""

import triton
import triton.language as tl

from interlock.plugins.attention.kernels.online import (
    average,
    empty_sums,
    load_queries,
    scan,
    with_sink,
)


@triton.jit(do_not_specialize=["table_stride"])
def prefill_kernel(q, out, k_plane, v_plane, k_scale, v_scale, sinks, blocks, offsets_R1, starts_R,
                   table, table_stride, q_stride,
                   GROUP: tl.constexpr, HEADS: tl.constexpr, D: tl.constexpr, V: tl.constexpr,
                   BLOCK_D: tl.constexpr, BLOCK_V: tl.constexpr, BLOCK_M: tl.constexpr,
                   BLOCK_N: tl.constexpr, PAGE: tl.constexpr, SCALE: tl.constexpr,
                   SOFTCAP: tl.constexpr, WINDOW: tl.constexpr, SINKS: tl.constexpr,
                   FP8: tl.constexpr):  # fmt: skip
    """Rows of `blocks` (row, first query); a block has BLOCK_M // GROUP queries."""
    queries: tl.constexpr = BLOCK_M // GROUP
    row = tl.load(blocks + tl.program_id(0) * 2)
    query = tl.load(blocks + tl.program_id(0) * 2 + 1)
    head = tl.program_id(1)
    token = tl.load(offsets_R1 + row)
    new = tl.load(offsets_R1 + row + 1) - token
    start = tl.load(starts_R + row)
    pages = table + row.to(tl.int64) * table_stride

    at_M = tl.arange(0, BLOCK_M)
    query_M = query + at_M // GROUP
    head_M = head * GROUP + at_M % GROUP
    real_M = (query_M < new) & (at_M < queries * GROUP)
    position_M = start + query_M
    q_MD = load_queries(q, q_stride, token + query_M, head_M, real_M, D, BLOCK_D)
    most_M, total_M, sums_MV = empty_sums(q_MD, BLOCK_M, BLOCK_V)

    end = start + tl.minimum(query + queries, new)
    if WINDOW > 0:
        middle = tl.maximum(start + query - WINDOW + 1, 0)
    else:  # tiles that the block's first query sees whole, so all of its queries do
        middle = (start + query + 1) // BLOCK_N * BLOCK_N
        most_M, total_M, sums_MV = scan(
            q_MD, most_M, total_M, sums_MV, k_plane, v_plane, k_scale, v_scale, pages, head,
            0, middle, start, query_M, position_M, q, -1, new, q,
            HEADS, D, V, BLOCK_D, BLOCK_V, BLOCK_N, PAGE, SCALE, SOFTCAP, WINDOW, False, FP8, False,
        )  # fmt: skip
    most_M, total_M, sums_MV = scan(
        q_MD, most_M, total_M, sums_MV, k_plane, v_plane, k_scale, v_scale, pages, head,
        middle, end, start, query_M, position_M, q, -1, new, q,
        HEADS, D, V, BLOCK_D, BLOCK_V, BLOCK_N, PAGE, SCALE, SOFTCAP, WINDOW, False, FP8, True,
    )  # fmt: skip
    if SINKS:
        most_M, total_M, sums_MV = with_sink(most_M, total_M, sums_MV, sinks, head_M, real_M)
    at_V = tl.arange(0, BLOCK_V)
    place = ((token + query_M).to(tl.int64) * (HEADS * GROUP) + head_M)[:, None] * V + at_V[None, :]
    result_MV = average(total_M, sums_MV, FP8)
    kept = real_M[:, None] & (at_V < V)[None, :]
    tl.store(out + place, result_MV.to(out.dtype.element_ty), mask=kept)
