"""New keys and values into their pages, quantised if the planes are.

Legend: T tokens, P pages, B tokens in a page, K key/value heads, D and V head sizes.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from interlock.plugins.attention.kernels.fp8 import HALF_LARGEST, encoded, scales_of
from interlock.plugins.attention.kernels.ragged import RaggedPlan

BLOCK_T = 16
"""Tokens that one program writes."""


@triton.jit
def _store(new, plane, scales, token_T, slot_T, real_T, stride, head,
           HEADS: tl.constexpr, SIZE: tl.constexpr, BLOCK: tl.constexpr,
           QUANTISED: tl.constexpr):  # fmt: skip
    """One head of BLOCK_T tokens."""
    at = tl.arange(0, BLOCK)
    real = real_T[:, None] & (at < SIZE)[None, :]
    source = token_T.to(tl.int64)[:, None] * stride + head * SIZE + at[None, :]
    rows = tl.load(new + source, mask=real, other=0.0)
    row_T = slot_T * HEADS + head
    target = plane + row_T[:, None] * SIZE + at[None, :]
    if QUANTISED:
        wide = rows.to(tl.float32)
        if rows.dtype == tl.float16:  # what is read back must be an fp16 number
            finite = tl.minimum(tl.maximum(wide, -HALF_LARGEST), HALF_LARGEST)
            wide = tl.where(tl.abs(wide) < float("inf"), finite, wide)
        scale_T, inverse_T = scales_of(wide)
        tl.store(scales + row_T, scale_T, mask=real_T)
        tl.store(target, encoded(wide * inverse_T[:, None]), mask=real)
    else:
        tl.store(target, rows.to(plane.dtype.element_ty), mask=real)


@triton.jit(do_not_specialize=["tokens", "table_stride"])
def write_kernel(k_new, v_new, k_plane, v_plane, k_scale, v_scale, offsets_R1, starts_R, row_T,
                 table, tokens, table_stride, k_stride, v_stride,
                 HEADS: tl.constexpr, D: tl.constexpr, V: tl.constexpr, BLOCK_D: tl.constexpr,
                 BLOCK_V: tl.constexpr, TOKENS: tl.constexpr, PAGE: tl.constexpr,
                 QUANTISED: tl.constexpr):  # fmt: skip
    """Program (block of tokens, head): entry starts[r] + i of row r's table gets its token i."""
    token_T = tl.program_id(0) * TOKENS + tl.arange(0, TOKENS)
    head = tl.program_id(1)
    real_T = token_T < tokens
    row = tl.load(row_T + token_T, mask=real_T, other=0)
    first = tl.load(offsets_R1 + row, mask=real_T, other=0)
    entry = tl.load(starts_R + row, mask=real_T, other=0) + token_T - first
    place = row.to(tl.int64) * table_stride + entry // PAGE
    page = tl.load(table + place, mask=real_T, other=0).to(tl.int64)
    slot_T = page * PAGE + entry % PAGE
    _store(k_new, k_plane, k_scale, token_T, slot_T, real_T, k_stride, head,
           HEADS, D, BLOCK_D, QUANTISED)  # fmt: skip
    _store(v_new, v_plane, v_scale, token_T, slot_T, real_T, v_stride, head,
           HEADS, V, BLOCK_V, QUANTISED)  # fmt: skip


def write_heads(
    plan: RaggedPlan, table: int, k_TKD: Tensor, v_TKV: Tensor, k_PBKD: Tensor, v_PBKV: Tensor,
    k_scale_PBK: Tensor | None, v_scale_PBK: Tensor | None,
) -> None:  # fmt: skip
    """Store the new tokens' rows in their slots; with scales, as e4m3 bits (planes are uint8)."""
    tokens, heads, size = k_TKD.shape
    if not tokens:
        return
    k_TKD, v_TKV = packed_heads(k_TKD), packed_heads(v_TKV)
    pages = plan.batch.page_tables[table]
    v_size = v_TKV.shape[-1]
    write_kernel[(triton.cdiv(tokens, BLOCK_T), heads)](
        k_TKD, v_TKV, k_PBKD, v_PBKV,
        k_PBKD if k_scale_PBK is None else k_scale_PBK,
        v_PBKV if v_scale_PBK is None else v_scale_PBK,
        plan.offsets_R1, plan.starts_R, plan.row_T, pages,
        tokens, pages.stride(0), k_TKD.stride(0), v_TKV.stride(0),
        HEADS=heads, D=size, V=v_size, BLOCK_D=triton.next_power_of_2(size),
        BLOCK_V=triton.next_power_of_2(v_size), TOKENS=BLOCK_T, PAGE=plan.batch.page_size,
        QUANTISED=k_scale_PBK is not None, num_warps=4,
    )  # fmt: skip


def packed_heads(x_THD: Tensor) -> Tensor:
    """The tensor, its heads side by side: tokens may be apart, as in a fused projection."""
    _, heads, size = x_THD.shape
    fits = x_THD.stride(2) == 1 and (heads == 1 or x_THD.stride(1) == size)
    return x_THD if fits else x_THD.contiguous()


def stored_bits(plane: Tensor) -> Tensor:
    """A plane as kernels take it: fp8 as its bits."""
    return plane.view(torch.uint8) if plane.dtype == torch.float8_e4m3fn else plane
