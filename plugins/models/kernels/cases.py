"""The layers' kernels as models of usual shapes launch them, for compilation ahead of time."""

import torch

from interlock.core.testing.kernel_case import KernelCase
from interlock.plugins.models.kernels.grouped import blocks_of, grouped_kernel

TYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}


def grouped_case(kind: str, masked: bool, gathered: bool, biased: bool) -> KernelCase:
    """One of an expert's two products; sizes are multiples of 16, as models have them."""
    blocks = blocks_of(TYPES[kind], masked)
    values = ("x", "weight", "bias", "out")
    places = ("rows", "tile_expert", "tile_row", "ends")
    sizes = ("inputs", "outputs", "capacity")
    what = f"{'gate and up' if gathered else 'down'}{', biased' if biased else ''}"
    return KernelCase(
        f"grouped product, {'masked' if masked else 'contiguous'}, {what}, {kind}",
        grouped_kernel,
        {
            **dict.fromkeys(values, f"*{kind}"), **dict.fromkeys(places, "*i64"),
            **dict.fromkeys(sizes, "i32"),
        },
        {
            "HAS_BIAS": biased, "GATHERED": gathered, "MASKED": masked, "BLOCK_M": blocks.rows,
            "BLOCK_F": blocks.outputs, "BLOCK_E": blocks.inputs, "WIDEN": False,
        },
        aligned=(*values, *places, "inputs", "outputs"),
        options={"num_warps": blocks.warps, "num_stages": blocks.stages},
    )  # fmt: skip


def cases() -> list[KernelCase]:
    """Every kernel of this package."""
    return [
        grouped_case(kind, masked, gathered, biased=kind == "bf16" and gathered)
        for kind in TYPES
        for masked in (False, True)
        for gathered in (True, False)
    ]
