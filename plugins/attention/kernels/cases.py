"""The attention kernels as models of usual shapes launch them, for compilation ahead of time.

Tiles and constants are those of the launches; so are the types, with fp8 planes as their bits.
"""

from collections.abc import Iterable, Iterator
from itertools import product
from typing import Any

from interlock.core.testing.kernel_case import ARCHITECTURES, KernelCase
from interlock.plugins.attention.kernels import decode, prefill, write
from interlock.plugins.attention.kernels.online import (
    FP8_BY_BITS,
    NATIVE_FP8,
    NATIVE_FP8_FROM,
    NO_FP8,
)
from interlock.plugins.attention.kernels.tiles import Tiles, block_of, prefill_tiles, short_tiles

ITEM_BYTES = {"bf16": 2, "fp16": 2, "fp32": 4}
SIZES = ((64, 64), (80, 80), (96, 96), (128, 128), (192, 128), (256, 256))
"""Head sizes of keys and values."""
PAGE = 16
HEADS, GROUP = 8, 4
FEATURES: dict[str, dict[str, Any]] = {
    "": {},
    ", window": {"WINDOW": 1024},
    ", soft cap": {"SOFTCAP": 50.0},
    ", sinks": {"SINKS": True, "WINDOW": 128},
}
READINGS = {"": NO_FP8, ", fp8 natively": NATIVE_FP8, ", fp8 by bits": FP8_BY_BITS}
POINTERS = {
    "*i32": ("offsets_R1", "starts_R", "mask_R", "row_T", "short_S", "blocks"),
    "*i64": ("table", "positions"),
    "*u8": ("masks",),
    "*fp32": ("sinks",),
}


def cases() -> list[KernelCase]:
    """Every kernel of this package."""
    return [*_writes(), *_prefills(), *_decodes(), *_merges()]


def _writes() -> Iterator[KernelCase]:
    for kind, size, fp8 in (
        *((kind, 128, False) for kind in ITEM_BYTES),
        *((kind, 128, True) for kind in ("bf16", "fp16", "fp32")),
        ("bf16", 80, True),
    ):
        constants = {
            "HEADS": HEADS, "D": size, "V": size, "BLOCK_D": block_of(size),
            "BLOCK_V": block_of(size), "TOKENS": write.BLOCK_T, "PAGE": PAGE, "QUANTISED": fp8,
        }  # fmt: skip
        name = f"gqa write, head size {size}, {kind}{' to fp8' if fp8 else ''}"
        stored = "u8" if fp8 else kind
        types = {"k_new": f"*{kind}", "v_new": f"*{kind}"}
        yield _case(name, write.write_kernel, types, stored, fp8, constants, num_warps=4)


def _prefills() -> Iterator[KernelCase]:
    for kind, sizes, feature, reading in _variants():
        tiles_of: dict[Tiles, list[int]] = {}
        for number in ARCHITECTURES:
            tiles = prefill_tiles(GROUP, block_of(max(sizes)), ITEM_BYTES[kind], number)
            tiles_of.setdefault(tiles, []).append(number)
        for tiles, numbers in tiles_of.items():
            if numbers == [80] and reading == ", fp8 natively":
                continue
            yield _attention(
                "prefill", prefill.prefill_kernel, kind, sizes, feature, reading, tiles, numbers
            )


def _decodes() -> Iterator[KernelCase]:
    for what, one_token in (("decode", True), ("verification", False)):
        for kind, sizes, feature, reading in _variants():
            tiles = short_tiles(GROUP, block_of(max(sizes)), ITEM_BYTES[kind], one_token)
            flags = {"SPLIT": one_token, "TREES": not one_token}
            yield _attention(
                what, decode.split_kernel, kind, sizes, feature, reading, tiles,
                list(ARCHITECTURES), **flags,
            )  # fmt: skip


def _merges() -> Iterator[KernelCase]:
    for kind, size, splits in (("bf16", 128, 32), ("bf16", 256, 32), ("fp32", 128, 8)):
        types = {"parts": "*fp32", "lse": "*fp32", "out": f"*{kind}"}
        constants = {
            "heads": HEADS * GROUP, "V": size, "BLOCK_V": block_of(size),
            "BLOCK_S": block_of(splits), "SINKS": True,
        }  # fmt: skip
        name = f"gqa merge of {splits}, head size {size}, {kind}"
        yield _case(name, decode.merge_kernel, types, kind, False, constants, num_warps=4)


def _variants() -> Iterator[tuple[str, tuple[int, int], str, str]]:
    """Every size in bf16; the other types, features and readings of fp8 with size 128."""
    for sizes in SIZES:
        yield "bf16", sizes, "", ""
    for kind, size in (("fp16", 128), ("fp32", 64), ("fp32", 128), ("fp32", 256)):
        yield kind, (size, size), "", ""
    for feature in list(FEATURES)[1:]:
        yield "bf16", (128, 128), feature, ""
    for kind, reading in product(("bf16", "fp16"), list(READINGS)[1:]):
        yield kind, (128, 128), "", reading


def _attention(
    what: str, kernel: Any, kind: str, sizes: tuple[int, int], feature: str, reading: str,
    tiles: Tiles, architectures: list[int], **flags: bool,
) -> KernelCase:  # fmt: skip
    size, v_size = sizes
    constants = {
        "GROUP": GROUP, "HEADS": HEADS, "D": size, "V": v_size, "BLOCK_D": block_of(size),
        "BLOCK_V": block_of(v_size), "BLOCK_M": tiles.rows, "BLOCK_N": tiles.entries, "PAGE": PAGE,
        "SCALE": size**-0.5, "SOFTCAP": 0.0, "WINDOW": 0, "SINKS": False,
        "FP8": int(READINGS[reading]), **flags, **FEATURES[feature],
    }  # fmt: skip
    types = {"q": f"*{kind}", "out": f"*{kind}", "parts": "*fp32", "lse": "*fp32"}
    if reading == ", fp8 natively":
        architectures = [number for number in architectures if number >= NATIVE_FP8_FROM]
    shape = f"head size {size}" + (f"/{v_size}" if v_size != size else "")
    cut = f"{tiles.rows}x{tiles.entries} x{tiles.num_warps}"
    return _case(
        f"gqa {what} {cut}, {shape}, {kind}{reading}{feature}",
        kernel, types, "u8" if reading else kind, bool(reading), constants, architectures,
        num_warps=tiles.num_warps, num_stages=tiles.num_stages,
    )  # fmt: skip


def _case(
    name: str, kernel: Any, types: dict[str, str], stored: str, fp8: bool,
    constants: dict[str, Any], architectures: Iterable[int] = ARCHITECTURES, **options: int,
) -> KernelCase:  # fmt: skip
    """A case of `kernel`, the types of its other arguments filled in; pointers are aligned."""
    known = {name: kind for kind, names in POINTERS.items() for name in names} | types
    known |= dict.fromkeys(("k_plane", "v_plane"), f"*{stored}")
    known |= dict.fromkeys(("k_scale", "v_scale"), "*fp32" if fp8 else f"*{stored}")
    signature = {arg: known.get(arg, "i32") for arg in kernel.arg_names if arg not in constants}
    loose = ("tokens", "table_stride", "splits")  # as declared with do_not_specialize
    return KernelCase(
        name, kernel, signature, constants,
        aligned=tuple(arg for arg in signature if arg not in loose), options=options,
        architectures=tuple(architectures),
    )  # fmt: skip
