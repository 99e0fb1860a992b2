"""The attention kernels as models of usual shapes launch them, for compilation ahead of time."""

import triton

from interlock.core.testing.kernel_case import KernelCase
from interlock.plugins.attention.kernels.write import BLOCK_T, write_kernel

TYPES = ("bf16", "fp16", "fp32", "fp64")
PAGE = 16


def write_case(heads: int, size: int, kind: str, fp8: bool) -> KernelCase:
    """New keys and values of `size` into pages, as they are or quantised."""
    pointers = ("k_new", "v_new", "k_plane", "v_plane", "k_scale", "v_scale")
    stored = "*u8" if fp8 else f"*{kind}"
    types = (f"*{kind}", f"*{kind}", stored, stored, *(["*fp32" if fp8 else stored] * 2))
    lists = dict.fromkeys(("offsets_R1", "starts_R", "row_T"), "*i32")
    strides = dict.fromkeys(("k_stride", "v_stride"), "i32")
    block = triton.next_power_of_2(size)
    return KernelCase(
        f"gqa write, head size {size}, {kind}{' to fp8' if fp8 else ''}",
        write_kernel,
        {
            **dict(zip(pointers, types, strict=True)), **lists, "table": "*i64", "tokens": "i32",
            "table_stride": "i32", **strides,
        },
        {
            "HEADS": heads, "D": size, "V": size, "BLOCK_D": block, "BLOCK_V": block,
            "TOKENS": BLOCK_T, "PAGE": PAGE, "QUANTISED": fp8,
        },
        aligned=(*pointers, *lists, "table", *strides),
        options={"num_warps": 4},
    )  # fmt: skip


def cases() -> list[KernelCase]:
    """Every kernel of this package."""
    return [
        *(write_case(8, 128, kind, fp8=False) for kind in TYPES),
        *(write_case(8, 128, kind, fp8=True) for kind in ("bf16", "fp16", "fp32")),
        write_case(3, 80, "bf16", fp8=True),
    ]
