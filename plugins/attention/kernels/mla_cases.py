"""Latent attention kernels as DeepSeek's models launch them, for compilation ahead of time."""

from typing import Any

import torch
import triton.language as tl

from interlock.core.testing.kernel_case import ARCHITECTURES, KernelCase
from interlock.plugins.attention.kernels.mla import (
    Tile,
    absorbed_tile,
    block,
    expanded_tile,
)
from interlock.plugins.attention.kernels.mla_absorbed import absorbed_kernel, merge_kernel
from interlock.plugins.attention.kernels.mla_expanded import expanded_kernel

RANK, ROPE, NOPE, VALUE = 512, 64, 128, 128
"""DeepSeek-V2, V3 and R1; Kimi K2."""
SCALE = (NOPE + ROPE) ** -0.5
PAGE = 16
DTYPES = {
    "bf16": (torch.bfloat16, tl.bfloat16),
    "fp16": (torch.float16, tl.float16),
    "fp32": (torch.float32, tl.float32),
}
STEP = {
    **dict.fromkeys(("offsets_R1", "starts_R", "mask_R"), "*i32"), "masks": "*u8",
    "positions": "*i64", "rows": "i32",
}  # fmt: skip


def _numbers(kind: str) -> dict[str, Any]:
    """Types of operands and of sums."""
    return {"OPERAND": DTYPES[kind][1], "ACC": tl.float32}


def _options(tile: Tile) -> dict[str, int]:
    return {"num_warps": tile.warps, "num_stages": tile.stages}


def _cut(tile: Tile) -> str:
    return f"{tile.queries}x{tile.entries} x{tile.warps}"


def absorbed_case(
    what: str, queries: int, heads: int, kind: str, *, rank: int = RANK, rope: int = ROPE,
    fp8: bool = False, trees: bool = False, window: int = 0,
    architectures: tuple[int, ...] = (80, 90, 100),
) -> KernelCase:  # fmt: skip
    """Rows of so many queries (heads times tokens), with split entries."""
    tile = absorbed_tile(queries, rank, DTYPES[kind][0], architectures[0], fp8, trees)
    queried = ("q_THC", "q_rope_THP", "rope")
    strides = ("latent_stride", "rope_stride")
    signature = {
        **dict.fromkeys(queried, f"*{kind}"), "latent": "*u8" if fp8 else f"*{kind}",
        "scales": "*fp32" if fp8 else f"*{kind}", "out": "*fp32", "lse": "*fp32", **STEP,
        "table": "*i64",
        "splits": "i32", "table_stride": "i32", **dict.fromkeys(strides, "i32"),
    }  # fmt: skip
    constants = {
        "HEADS": heads, "RANK": rank, "ROPE": rope, "PARTS": rank // 128 if fp8 else 0,
        "PAGE": PAGE, "SCALE": SCALE, "WINDOW": window, "TREES": trees, "SPLIT": True,
        **_numbers(kind), "BLOCK_M": tile.queries, "BLOCK_N": tile.entries,
        "BLOCK_C": block(rank), "BLOCK_P": block(rope),
    }  # fmt: skip
    pointers = tuple(name for name, type_ in signature.items() if type_.startswith("*"))
    return KernelCase(
        f"mla absorbed {_cut(tile)}, {what}, {kind}{', fp8 latents' if fp8 else ''}",
        absorbed_kernel, signature, constants, (*pointers, *strides), _options(tile), architectures,
    )  # fmt: skip


def expanded_case(
    what: str, kind: str, *, window: int = 0, trees: bool = False,
    architectures: tuple[int, ...] = (80, 90, 100),
) -> KernelCase:  # fmt: skip
    """A long chunk after its context, expanded to heads."""
    tile = expanded_tile(NOPE + ROPE, DTYPES[kind][0], architectures[0])
    names = ("q_THN", "q_THP", "k_SHN", "k_SP", "v_SHV", "out_THV")
    strides = ("q_stride", "q_rope_stride", "k_stride", "v_stride", "rope_stride", "out_stride")
    signature = {
        **dict.fromkeys(names, f"*{kind}"), **STEP, "base_R": "*i32",
        **dict.fromkeys(strides, "i32"),
    }  # fmt: skip
    constants = {
        "NOPE": NOPE, "ROPE": ROPE, "VALUE": VALUE, "SCALE": SCALE, "WINDOW": window,
        "TREES": trees, **_numbers(kind), "BLOCK_M": tile.queries, "BLOCK_E": tile.entries,
        "BLOCK_N": block(NOPE), "BLOCK_P": block(ROPE), "BLOCK_V": block(VALUE),
    }  # fmt: skip
    pointers = tuple(name for name, type_ in signature.items() if type_.startswith("*"))
    return KernelCase(
        f"mla expanded {_cut(tile)}, {what}, {kind}", expanded_kernel, signature, constants,
        (*pointers, *strides), _options(tile), architectures,
    )  # fmt: skip


def merge_case(kind: str) -> KernelCase:
    """Sums of latents of up to 64 splits."""
    return KernelCase(
        f"mla merge, {kind}", merge_kernel,
        {"parts": "*fp32", "lse": "*fp32", "out": f"*{kind}", "splits": "i32"},
        {"SIZE": RANK, "BLOCK": block(RANK), "SPLITS": 64},
        ("parts", "lse", "out"), {"num_warps": 4},
    )  # fmt: skip


def _of_each_gpu() -> list[KernelCase]:
    """Cases whose tiles differ between GPUs."""
    absorbed: list[tuple[str, dict[str, Any]]] = [
        ("bf16", {}), ("fp16", {}), ("bf16", {"fp8": True}), ("bf16", {"trees": True}),
    ]  # fmt: skip
    found = []
    for number, gpu in ARCHITECTURES.items():
        for kind, more in absorbed:
            what = f"128 heads{' with trees' if 'trees' in more else ''} on {gpu}"
            found.append(absorbed_case(what, 128, 128, kind, architectures=(number,), **more))
        found.append(expanded_case(f"causal on {gpu}", "bf16", architectures=(number,)))
        found.append(expanded_case(f"causal on {gpu}", "fp16", architectures=(number,)))
        what = f"with trees on {gpu}"
        found.append(expanded_case(what, "bf16", trees=True, architectures=(number,)))
    return found


def cases() -> list[KernelCase]:
    """Every latent attention kernel, in every dtype that it serves."""
    return [
        *(absorbed_case("16 heads", 16, 16, kind) for kind in ("bf16", "fp16", "fp32")),
        *(absorbed_case("16 heads", 16, 16, kind, fp8=True) for kind in ("bf16", "fp16", "fp32")),
        absorbed_case("16 heads with trees", 16, 16, "bf16", trees=True),
        absorbed_case("16 heads with trees", 16, 16, "bf16", trees=True, fp8=True),
        absorbed_case("16 heads with a window", 16, 16, "bf16", window=4096),
        absorbed_case("16 heads, 2 tokens", 32, 16, "bf16"),
        absorbed_case("40 heads, rank 256", 40, 40, "bf16", rank=256, rope=32),
        absorbed_case("40 heads, rank 256", 40, 40, "bf16", rank=256, rope=32, fp8=True),
        *(merge_case(kind) for kind in DTYPES),
        expanded_case("causal", "fp32"),
        expanded_case("with a window", "bf16", window=4096, architectures=(90,)),
        *_of_each_gpu(),
    ]
