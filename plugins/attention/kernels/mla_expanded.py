"""Expanded latent attention: long chunks against keys and values that were made for each head.

Heads have keys of their own, but for the rotary part, which all share and which is never copied.
A program has one head's queries of BLOCK_M tokens and walks over the entries that they see.

Legend: T tokens, S expanded entries of all rows, H heads, N and P head parts without and with
rotary embedding, V value head size, R rows, M queries and E entries of a tile.
"""

import triton
import triton.language as tl

from interlock.plugins.attention.kernels.mla_absorbed import (
    LOG2_E,
    find_row,
    newest_step,
    visible,
)


@triton.jit
def _walk(
    q_MN, q_MP, k_SHN, k_SP, v_SHV, base, first, end, most_M, total_M, sums_MV,
    step_M, position_M, start, first_token, new, masks, mask_at, positions,
    k_stride, v_stride, rope_stride,
    NOPE: tl.constexpr, ROPE: tl.constexpr, VALUE: tl.constexpr, SCALE: tl.constexpr,
    WINDOW: tl.constexpr, TREES: tl.constexpr, HIDDEN: tl.constexpr, OPERAND: tl.constexpr,
    ACC: tl.constexpr, BLOCK_E: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_P: tl.constexpr,
    BLOCK_V: tl.constexpr,
):  # fmt: skip
    """The running softmax over entries first .. end; without HIDDEN, whole tiles that all see."""
    part_N, part_P, part_V = tl.arange(0, BLOCK_N), tl.arange(0, BLOCK_P), tl.arange(0, BLOCK_V)
    for begin in range(first, end, BLOCK_E):
        entry_E = begin + tl.arange(0, BLOCK_E)
        real_E = entry_E < end
        at_E = (base + entry_E).to(tl.int64)
        k_NE = tl.load(
            k_SHN + at_E[None, :] * k_stride + part_N[:, None],
            mask=real_E[None, :] & (part_N < NOPE)[:, None], other=0,
        ).to(OPERAND)  # fmt: skip
        k_PE = tl.load(
            k_SP + at_E[None, :] * rope_stride + part_P[:, None],
            mask=real_E[None, :] & (part_P < ROPE)[:, None], other=0,
        ).to(OPERAND)  # fmt: skip
        score_ME = tl.dot(q_MN, k_NE, input_precision="ieee", out_dtype=ACC)
        score_ME = tl.dot(q_MP, k_PE, score_ME, input_precision="ieee", out_dtype=ACC)
        score_ME *= SCALE * LOG2_E
        if HIDDEN:
            seen_ME = visible(
                entry_E, step_M, position_M, start, first_token, new, masks, mask_at, positions,
                WINDOW, TREES,
            )  # fmt: skip
            score_ME = tl.where(seen_ME & real_E[None, :], score_ME, -float("inf"))
        most_new_M = tl.maximum(most_M, tl.max(score_ME, 1))
        shift_M = tl.where(most_new_M == -float("inf"), 0.0, most_new_M)
        keep_M = tl.exp2(most_M - shift_M)
        weight_ME = tl.exp2(score_ME - shift_M[:, None])
        total_M = total_M * keep_M + tl.sum(weight_ME, 1)
        v_EV = tl.load(
            v_SHV + at_E[:, None] * v_stride + part_V[None, :],
            mask=real_E[:, None] & (part_V < VALUE)[None, :], other=0,
        ).to(OPERAND)  # fmt: skip
        sums_MV = tl.dot(
            weight_ME.to(OPERAND), v_EV, sums_MV * keep_M[:, None],
            input_precision="ieee", out_dtype=ACC,
        )  # fmt: skip
        most_M = most_new_M
    return most_M, total_M, sums_MV


@triton.jit(do_not_specialize=["rows"])
def expanded_kernel(
    q_THN, q_THP, k_SHN, k_SP, v_SHV, out_THV,
    offsets_R1, starts_R, base_R, mask_R, masks, positions,
    rows, q_stride, q_rope_stride, k_stride, v_stride, rope_stride, out_stride,
    NOPE: tl.constexpr, ROPE: tl.constexpr, VALUE: tl.constexpr, SCALE: tl.constexpr,
    WINDOW: tl.constexpr, TREES: tl.constexpr, OPERAND: tl.constexpr, ACC: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_E: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_P: tl.constexpr,
    BLOCK_V: tl.constexpr,
):  # fmt: skip
    """Program (tile, head); strides are those of tokens and entries. WINDOW 0: none.

    Entry e of row r is expanded in base_R[r] + e. Tiles are taken from the last, which sees most.
    """
    place = tl.num_programs(0) - 1 - tl.program_id(0)
    head = tl.program_id(1)
    row, tile = find_row(place, offsets_R1, rows, 1, BLOCK_M)
    first_token = tl.load(offsets_R1 + row)
    new = tl.load(offsets_R1 + row + 1) - first_token
    if tile * BLOCK_M >= new:
        return
    start, base, mask_at = tl.load(starts_R + row), tl.load(base_R + row), tl.load(mask_R + row)
    query_M = tile * BLOCK_M + tl.arange(0, BLOCK_M)
    real_M = query_M < new
    step_M = tl.minimum(query_M, new - 1)
    position_M = tl.load(positions + first_token + step_M)
    token_M = (first_token + query_M).to(tl.int64)
    part_N, part_P, part_V = tl.arange(0, BLOCK_N), tl.arange(0, BLOCK_P), tl.arange(0, BLOCK_V)
    q_MN = tl.load(
        q_THN + token_M[:, None] * q_stride + head * NOPE + part_N[None, :],
        mask=real_M[:, None] & (part_N < NOPE)[None, :], other=0,
    ).to(OPERAND)  # fmt: skip
    q_MP = tl.load(
        q_THP + token_M[:, None] * q_rope_stride + head * ROPE + part_P[None, :],
        mask=real_M[:, None] & (part_P < ROPE)[None, :], other=0,
    ).to(OPERAND)  # fmt: skip
    most_M = tl.full([BLOCK_M], -float("inf"), ACC)
    total_M = tl.zeros([BLOCK_M], ACC)
    sums_MV = tl.zeros([BLOCK_M, BLOCK_V], ACC)
    k_SHN += head * NOPE
    v_SHV += head * VALUE
    oldest = 0
    shared = 0
    if WINDOW > 0:
        oldest = tl.maximum(tl.min(position_M, 0) - WINDOW + 1, 0).to(tl.int32)
    elif TREES:
        shared = start // BLOCK_E * BLOCK_E
    else:
        shared = (start + tile * BLOCK_M + 1) // BLOCK_E * BLOCK_E
    if WINDOW == 0:
        most_M, total_M, sums_MV = _walk(
            q_MN, q_MP, k_SHN, k_SP, v_SHV, base, 0, shared, most_M, total_M, sums_MV,
            step_M, position_M, start, first_token, new, masks, mask_at, positions,
            k_stride, v_stride, rope_stride, NOPE, ROPE, VALUE, SCALE, WINDOW, TREES, False,
            OPERAND, ACC, BLOCK_E, BLOCK_N, BLOCK_P, BLOCK_V,
        )  # fmt: skip
        oldest = shared
    newest = start + newest_step(step_M, new, mask_at, TREES) + 1
    most_M, total_M, sums_MV = _walk(
        q_MN, q_MP, k_SHN, k_SP, v_SHV, base, oldest, newest, most_M, total_M, sums_MV,
        step_M, position_M, start, first_token, new, masks, mask_at, positions,
        k_stride, v_stride, rope_stride, NOPE, ROPE, VALUE, SCALE, WINDOW, TREES, True,
        OPERAND, ACC, BLOCK_E, BLOCK_N, BLOCK_P, BLOCK_V,
    )  # fmt: skip
    result_MV = (sums_MV / total_M[:, None]).to(out_THV.dtype.element_ty)
    tl.store(
        out_THV + token_M[:, None] * out_stride + head * VALUE + part_V[None, :], result_MV,
        mask=real_M[:, None] & (part_V < VALUE)[None, :],
    )  # fmt: skip
