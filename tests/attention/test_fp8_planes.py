"""Backends over planes in fp8 keep the contract, by the formula over what the planes hold."""

import pytest
import torch

from interlock.core.attention import AttentionBackend
from interlock.core.model import AttentionSpec
from interlock.core.testing.attention_contract import AttentionContract
from interlock.core.testing.attention_oracle import Work
from interlock.core.testing.attention_scene import Scene
from interlock.plugins.attention.gqa import GqaAttention
from interlock.plugins.attention.mla import MlaAttention
from interlock.plugins.attention.reference import ReferenceAttention


class TestGqaFp8(AttentionContract):
    forms = ("heads",)
    serves_softcaps = True
    serves_sinks = True

    def make(self) -> AttentionBackend:
        return GqaAttention(cache_dtype="fp8")


class TestMlaFp8(AttentionContract):
    forms = ("latent",)

    def specs(self) -> list[tuple[AttentionSpec, ...]]:
        """Also one whose latents have two scales a token."""
        wide = AttentionSpec("latent", 2, 1, 10, 8, 0.3, None, 144, 6, 4)
        return [*super().specs(), (wide,)]

    def make(self) -> AttentionBackend:
        return MlaAttention(cache_dtype="fp8")


@pytest.mark.parametrize("form", ["heads", "latent"])
def test_the_reference_stores_the_same_bits_and_reads_the_same_numbers(form):
    """Written out by itself, and with it what a latent's two scales belong to."""
    spec = {
        "heads": AttentionSpec("heads", 4, 2, 8, 5, 0.5),
        "latent": AttentionSpec("latent", 2, 1, 10, 8, 0.3, None, 144, 6, 4),
    }[form]
    fast = GqaAttention if form == "heads" else MlaAttention
    backends = ReferenceAttention("fp8"), fast(cache_dtype="fp8")
    scenes = [Scene(backend, (spec,), (9, 4)) for backend in backends]
    for scene in scenes:
        inputs = scene.inputs[0][0]
        rows = inputs.k_TKD if form == "heads" else inputs.latent_TC
        rows[2] = 0
        rows[3] *= 1e-6
        rows[4] = 448 * rows[4].sign()
        scene.check_step(Work(0, 8), Work(1, 3))
        scene.check_step(Work(1, 1), Work(0, 1))
    for mine, other in zip(*(s.planes.of_layer[0].values() for s in scenes), strict=True):
        assert torch.equal(mine.view(torch.uint8), other.view(torch.uint8))
