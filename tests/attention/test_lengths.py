"""Every CPU attention path at lengths around pages and chunks, with poison past every row's end."""

from dataclasses import replace
from itertools import pairwise

import pytest
import torch

from interlock.core.attention import AttentionBackend
from interlock.core.model import AttentionSpec
from interlock.core.testing.attention_oracle import Work
from interlock.core.testing.attention_scene import Scene
from interlock.plugins.attention.gqa import (
    GqaAttention,
    InvariantGqaAttention,
    NativeGqaAttention,
)
from interlock.plugins.attention.mla import (
    InvariantMlaAttention,
    MlaAttention,
    NativeMlaAttention,
)
from interlock.plugins.attention.native.long_rows import runs_long_rows

LENGTHS = (1, 15, 16, 17, 255, 256, 257)
DTYPES = (torch.float32, torch.bfloat16, torch.float64)
HEADS = AttentionSpec("heads", 6, 2, 16, 16, 0.25)
WIDE = AttentionSpec("heads", 6, 2, 96, 64, 0.1)  # their scores are products of pairs in bf16
LATENT = AttentionSpec("latent", 2, 1, 10, 8, 0.3, None, 8, 6, 4)
PATHS = {
    "gqa, torch": (GqaAttention, HEADS),
    "gqa, compiled": (NativeGqaAttention, HEADS),
    "gqa of wide heads, compiled": (NativeGqaAttention, WIDE),
    "mqa of wide heads, compiled": (NativeGqaAttention, replace(WIDE, num_kv_heads=1)),
    "gqa, batch-invariant": (InvariantGqaAttention, HEADS),
    "gqa with cap and sinks, torch": (GqaAttention, replace(HEADS, softcap=2.0, sinks=True)),
    "gqa with cap and sinks, compiled": (
        NativeGqaAttention,
        replace(HEADS, softcap=2.0, sinks=True),
    ),
    "mla absorbed, torch": (lambda: MlaAttention("absorbed"), LATENT),
    "mla absorbed, compiled": (lambda: NativeMlaAttention("absorbed"), LATENT),
    "mla expanded": (lambda: MlaAttention("expanded"), LATENT),
    "mla, batch-invariant": (InvariantMlaAttention, LATENT),
}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("path", PATHS)
def test_rows_that_end_around_a_page_or_chunk_equal_the_formula(
    path: str, dtype: torch.dtype
) -> None:
    """Prompts of every length at once, then one decode token of each, beside a short window.

    The scene fills every slot that a row does not own with NaN, the rest of its last page included.
    """
    make, spec = PATHS[path]
    backend: AttentionBackend = make()
    lengths = tuple(n + 3 for n in LENGTHS)
    scene = Scene(backend, (spec, replace(spec, window=20)), lengths, page_size=16, dtype=dtype)
    scene.check_step(*(Work(row, length) for row, length in enumerate(LENGTHS)))
    scene.check_step(*(Work(row, 1) for row in range(len(LENGTHS))))
    scene.check_step(*(Work(row, 2) for row in reversed(range(len(LENGTHS)))))


LONG_SPECS = {
    "3 heads a key head": HEADS,
    "8 heads a key head, sizes that are no vectors": AttentionSpec("heads", 8, 1, 20, 72, 0.3),
    "one head a key head, odd sizes": AttentionSpec("heads", 2, 2, 7, 5, 0.4),
    "cap": replace(HEADS, softcap=2.0),
    "sinks": replace(HEADS, sinks=True),
    "cap and sinks": replace(HEADS, softcap=1.5, sinks=True),
}


@pytest.mark.parametrize("page_size", [1, 16, 64])
@pytest.mark.parametrize("spec", LONG_SPECS.values(), ids=LONG_SPECS)
def test_long_chunks_after_every_prefix_equal_the_formula_in_bf16(
    spec: AttentionSpec, page_size: int
) -> None:
    """A prompt and two chunks of each length, beside a decode token: lengths and prefixes alternate
    around blocks of keys and queries, and in a layer with a window whole blocks are out of sight.
    """
    cuts = ((0, 33, 96, 196), (0, 63, 163, 420), (0, 100, 133, 190), (0, 257, 357, 390))
    scene = Scene(
        NativeGqaAttention(), (spec, replace(spec, window=45)), (*(c[-1] for c in cuts), 4),
        page_size=page_size, dtype=torch.bfloat16,
    )  # fmt: skip
    steps = zip(*([end - begin for begin, end in pairwise(c)] for c in cuts), strict=True)
    for chunks in steps:
        scene.check_step(Work(4, 1), *(Work(row, new) for row, new in enumerate(chunks)))


@pytest.mark.skipif(not runs_long_rows(torch.bfloat16), reason="needs AVX512_BF16")
@pytest.mark.parametrize("spec", [HEADS, replace(HEADS, window=45)], ids=["all", "window"])
def test_bits_of_long_rows_depend_on_no_chunk_neighbour_or_thread(spec: AttentionSpec) -> None:
    def run(lengths: tuple[int, ...], *steps: tuple[Work, ...]) -> torch.Tensor:
        scene = Scene(NativeGqaAttention(), (spec,), lengths, 16, torch.bfloat16)
        return torch.cat([scene.check_step(*step)[0][: step[0].new] for step in steps])

    whole = run((390,), (Work(0, 390),))
    assert torch.equal(run((390,), (Work(0, 77),), (Work(0, 200),), (Work(0, 113),)), whole)
    assert torch.equal(run((390, 70), (Work(0, 390), Work(1, 70))), whole)
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(3)
        assert torch.equal(run((390,), (Work(0, 390),)), whole)
    finally:
        torch.set_num_threads(threads)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_long_rows_of_wider_types_stay_with_torch(dtype: torch.dtype) -> None:
    assert not runs_long_rows(dtype)
