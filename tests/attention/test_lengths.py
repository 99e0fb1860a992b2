"""Every CPU attention path at lengths around pages and chunks, with poison past every row's end."""

from dataclasses import replace

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

LENGTHS = (1, 15, 16, 17, 255, 256, 257)
DTYPES = (torch.float32, torch.bfloat16, torch.float64)
HEADS = AttentionSpec("heads", 6, 2, 16, 16, 0.25)
LATENT = AttentionSpec("latent", 2, 1, 10, 8, 0.3, None, 8, 6, 4)
PATHS = {
    "gqa, torch": (GqaAttention, HEADS),
    "gqa, compiled": (NativeGqaAttention, HEADS),
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
