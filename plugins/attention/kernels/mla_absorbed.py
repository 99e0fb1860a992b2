"""Absorbed latent attention over pages: decode, verification and chunks by one kernel.

All heads of a token read the same stored row, which is key and value at once (DeepSeek-V2, arXiv
2405.04434, section 2.1). So a row's queries, token by token and head by head, are one list that is
cut into tiles: 128 heads of a decode token are two tiles of 64, four draft tokens of 4 heads are
one of 16. A tile reads every latent that it sees once, for scores and for sums.

The entries that a tile sees are shared out evenly among `splits` programs (Flash-Decoding); `merge`
joins their sums. No entry past the end, or older than a window, is read.

Row r's tiles begin at offsets[r] * H // M + r, which leaves room for every division of the tokens
among the rows: the grid depends on their numbers alone, and programs that find no query end.

Legend: T tokens, H heads, C latent rank, P rotary part, S splits, R rows of a step, M queries and N
entries of a tile.
"""

import triton
import triton.language as tl

LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit
def find_row(tile, offsets_R1, rows, HEADS: tl.constexpr, BLOCK_M: tl.constexpr):
    """(row, number of the tile within it)."""
    low = 0
    high = rows
    while high - low > 1:
        middle = (low + high) // 2
        if tl.load(offsets_R1 + middle) * HEADS // BLOCK_M + middle <= tile:
            low = middle
        else:
            high = middle
    return low, tile - (tl.load(offsets_R1 + low) * HEADS // BLOCK_M + low)


@triton.jit
def visible(entry_N, step_M, position_M, start, first_token, new, masks, mask_at, positions,
            WINDOW: tl.constexpr, TREES: tl.constexpr):  # fmt: skip
    """bool [M, N]: which entries the new tokens `step_M` of a row see.

    Of a chain's new tokens they see the earlier ones. A draft tree (mask_at >= 0) has a mask
    [new, new], query by key, and positions that are not its entries' numbers; so has a block,
    which sees later ones too.
    """
    step_N = entry_N - start
    seen_MN = step_N[None, :] <= step_M[:, None]
    position_N = entry_N.to(tl.int64)
    if TREES:
        drafted_N = (mask_at >= 0) & (step_N >= 0)
        real_N = drafted_N & (step_N < new)
        at_MN = mask_at + step_M[:, None] * new + step_N[None, :]
        ancestor_MN = tl.load(masks + at_MN, mask=real_N[None, :], other=0)
        seen_MN = tl.where(drafted_N[None, :], ancestor_MN != 0, seen_MN)
        if WINDOW > 0:
            drafted = tl.load(positions + first_token + step_N, mask=real_N, other=0)
            position_N = tl.where(drafted_N, drafted, position_N)
    if WINDOW > 0:
        seen_MN &= position_N[None, :] > position_M[:, None] - WINDOW
    return seen_MN


@triton.jit
def newest_step(step_M, new, mask_at, TREES: tl.constexpr):
    """The last of a row's new tokens that some of `step_M` may see."""
    newest = tl.max(step_M, 0)
    if TREES:
        newest = tl.where(mask_at >= 0, new - 1, newest)
    return newest


@triton.jit
def load_latents(latent, scales, slot_N, real_N, rank_C, stride, RANK: tl.constexpr,
                 PARTS: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_C: tl.constexpr,
                 OPERAND: tl.constexpr):  # fmt: skip
    """[N, C] as an operand of a product; with PARTS > 0, e4m3 bits times a scale for each part.

    An e4m3 number is the fp16 number of the same bits times 2^8; sm_80 has no such type. A part
    with a number that is not finite has a scale that is NaN (see `fp8`).
    """
    real_NC = real_N[:, None]
    if RANK < BLOCK_C:
        real_NC &= (rank_C < RANK)[None, :]
    k_NC = tl.load(latent + slot_N[:, None] * stride + rank_C[None, :], mask=real_NC, other=0)
    if PARTS > 0:
        narrow_NC = k_NC.to(tl.uint16)
        half_NC = ((narrow_NC & 0x80) << 8) | ((narrow_NC & 0x7F) << 7)
        k_NC = half_NC.to(tl.float16, bitcast=True).to(tl.float32)
        if PARTS == 1:
            k_NC *= 256 * tl.load(scales + slot_N, mask=real_N, other=0)[:, None]
        elif RANK == BLOCK_C:
            at_NG = slot_N[:, None] * PARTS + tl.arange(0, PARTS)[None, :]
            scale_NG = 256 * tl.load(scales + at_NG, mask=real_N[:, None], other=0)
            k_NGD = tl.reshape(k_NC, [BLOCK_N, PARTS, RANK // PARTS]) * scale_NG[:, :, None]
            k_NC = tl.reshape(k_NGD, [BLOCK_N, BLOCK_C])
        else:
            at_NC = slot_N[:, None] * PARTS + (rank_C // (RANK // PARTS))[None, :]
            k_NC *= 256 * tl.load(scales + at_NC, mask=real_NC, other=0)
    return k_NC.to(OPERAND)


@triton.jit(do_not_specialize=["rows", "splits", "table_stride"])
def absorbed_kernel(
    q_THC, q_rope_THP, latent, rope, scales, out, lse,
    offsets_R1, starts_R, mask_R, masks, positions, table,
    rows, splits, table_stride, latent_stride, rope_stride,
    HEADS: tl.constexpr, RANK: tl.constexpr, ROPE: tl.constexpr, PARTS: tl.constexpr,
    PAGE: tl.constexpr, SCALE: tl.constexpr, WINDOW: tl.constexpr, TREES: tl.constexpr,
    SPLIT: tl.constexpr, OPERAND: tl.constexpr, ACC: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_C: tl.constexpr, BLOCK_P: tl.constexpr,
):  # fmt: skip
    """Program (tile, split). WINDOW 0: none. OPERAND: dtype of products' operands, ACC of sums.

    Writes [T, H, C]; with SPLIT, [T, H, S, C] and log2 of the denominators [T, H, S] in ACC.
    """
    split = tl.program_id(1)
    row, tile = find_row(tl.program_id(0), offsets_R1, rows, HEADS, BLOCK_M)
    first_token = tl.load(offsets_R1 + row)
    new = tl.load(offsets_R1 + row + 1) - first_token
    if tile * BLOCK_M >= new * HEADS:
        return
    start = tl.load(starts_R + row)
    mask_at = tl.load(mask_R + row)
    query_M = tile * BLOCK_M + tl.arange(0, BLOCK_M)
    real_M = query_M < new * HEADS
    step_M = tl.minimum(query_M // HEADS, new - 1)
    position_M = tl.load(positions + first_token + step_M)
    flat_M = first_token.to(tl.int64) * HEADS + query_M
    rank_C, rope_P = tl.arange(0, BLOCK_C), tl.arange(0, BLOCK_P)
    real_MC = real_M[:, None] & (rank_C < RANK)[None, :]
    real_MP = real_M[:, None] & (rope_P < ROPE)[None, :]
    q_MC = tl.load(q_THC + flat_M[:, None] * RANK + rank_C[None, :], mask=real_MC, other=0)
    q_MP = tl.load(q_rope_THP + flat_M[:, None] * ROPE + rope_P[None, :], mask=real_MP, other=0)
    q_MC, q_MP = q_MC.to(OPERAND), q_MP.to(OPERAND)

    oldest = 0
    if WINDOW > 0:
        oldest = tl.maximum(tl.min(position_M, 0) - WINDOW + 1, 0).to(tl.int32)
    newest = start + newest_step(step_M, new, mask_at, TREES) + 1
    share = tl.cdiv(tl.cdiv(newest - oldest, BLOCK_N), splits) * BLOCK_N
    first = oldest + split * share
    end = tl.minimum(first + share, newest)

    most_M = tl.full([BLOCK_M], -float("inf"), ACC)
    total_M = tl.zeros([BLOCK_M], ACC)
    sums_MC = tl.zeros([BLOCK_M, BLOCK_C], ACC)
    for begin in range(first, end, BLOCK_N):
        entry_N = begin + tl.arange(0, BLOCK_N)
        real_N = entry_N < end
        seen_MN = visible(
            entry_N, step_M, position_M, start, first_token, new, masks, mask_at, positions,
            WINDOW, TREES,
        )  # fmt: skip
        seen_MN &= real_N[None, :]
        place_N = row.to(tl.int64) * table_stride + entry_N // PAGE
        page_N = tl.load(table + place_N, mask=real_N, other=0)
        slot_N = page_N.to(tl.int64) * PAGE + entry_N % PAGE
        k_NC = load_latents(
            latent, scales, slot_N, real_N, rank_C, latent_stride, RANK, PARTS, BLOCK_N, BLOCK_C,
            OPERAND,
        )  # fmt: skip
        real_NP = real_N[:, None]
        if ROPE < BLOCK_P:
            real_NP &= (rope_P < ROPE)[None, :]
        at_NP = slot_N[:, None] * rope_stride + rope_P[None, :]
        k_NP = tl.load(rope + at_NP, mask=real_NP, other=0).to(OPERAND)
        score_MN = tl.dot(q_MC, tl.trans(k_NC), input_precision="ieee", out_dtype=ACC)
        score_MN = tl.dot(q_MP, tl.trans(k_NP), score_MN, input_precision="ieee", out_dtype=ACC)
        score_MN = tl.where(seen_MN, score_MN * (SCALE * LOG2_E), -float("inf"))
        most_new_M = tl.maximum(most_M, tl.max(score_MN, 1))
        shift_M = tl.where(most_new_M == -float("inf"), 0.0, most_new_M)
        keep_M = tl.exp2(most_M - shift_M)
        weight_MN = tl.exp2(score_MN - shift_M[:, None])
        total_M = total_M * keep_M + tl.sum(weight_MN, 1)
        sums_MC = tl.dot(
            weight_MN.to(OPERAND), k_NC, sums_MC * keep_M[:, None],
            input_precision="ieee", out_dtype=ACC,
        )  # fmt: skip
        most_M = most_new_M

    divisor_M = tl.where(total_M == 0.0, 1.0, total_M)
    result_MC = sums_MC / divisor_M[:, None]
    if SPLIT:
        part_M = flat_M * splits + split
        tl.store(lse + part_M, most_M + tl.log2(divisor_M), mask=real_M)
        tl.store(out + part_M[:, None] * RANK + rank_C[None, :], result_MC, mask=real_MC)
    else:
        kept_MC = result_MC.to(out.dtype.element_ty)
        tl.store(out + flat_M[:, None] * RANK + rank_C[None, :], kept_MC, mask=real_MC)


@triton.jit(do_not_specialize=["splits"])
def merge_kernel(parts, lse, out, splits, SIZE: tl.constexpr, BLOCK: tl.constexpr,
                 SPLITS: tl.constexpr):  # fmt: skip
    """Program (query): [S, SIZE] weighted by 2^lse, of which one at least is finite.

    One part after the other: 64 parts of 512 numbers, unlike heads' values, do not fit registers.
    """
    query = tl.program_id(0).to(tl.int64)
    at_S = tl.arange(0, SPLITS)
    lse_S = tl.load(lse + query * splits + at_S, mask=at_S < splits, other=-float("inf"))
    most = tl.max(lse_S, 0)
    total = tl.sum(tl.exp2(lse_S - most), 0)
    at = tl.arange(0, BLOCK)
    sums = tl.zeros([BLOCK], lse_S.dtype)
    for split in range(splits):
        part = query * splits + split
        weight = tl.exp2(tl.load(lse + part) - most) / total
        sums += weight * tl.load(parts + part * SIZE + at, mask=at < SIZE, other=0)
    tl.store(out + query * SIZE + at, sums.to(out.dtype.element_ty), mask=at < SIZE)
