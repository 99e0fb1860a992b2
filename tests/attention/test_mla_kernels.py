"""Which latent models attention=mla has Triton kernels for, and what it says of the others."""

import pytest

from interlock.core.capabilities import Composition
from interlock.core.model import AttentionSpec, ModelDescription
from interlock.plugins.attention import MlaConfig, components


def latent(rank, rope):
    spec = AttentionSpec("latent", 4, 1, 8 + rope, 8, 0.3, None, rank, 8, rope)
    return ModelDescription("m", "deepseek", 50, 16, 1, 64, (spec,), "bfloat16", {})


def refusals(model, dtype, kernel="triton", device="cuda"):
    component = next(c for c in components() if c.name == "mla")
    composition = Composition({}, frozenset(), model, device, dtype, {"numerics": "fast"})
    asked = component.requires(MlaConfig(kernel=kernel), model)
    return [reason for one in asked if (reason := one(composition)) is not None]


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_deepseeks_latents_have_kernels(dtype):
    pytest.importorskip("triton")
    assert refusals(latent(512, 64), dtype) == []


@pytest.mark.parametrize(("rank", "rope"), [(513, 64), (512, 130)])
def test_latents_that_tiles_do_not_hold_are_refused_by_name_and_run_with_torch(rank, rope):
    pytest.importorskip("triton")
    model = latent(rank, rope)
    (reason,) = refusals(model, "bfloat16")
    assert f"kv_lora_rank={rank} and qk_rope_head_dim={rope}" in reason
    assert reason.endswith("or set attention.kernel=torch")
    assert refusals(model, "bfloat16", kernel="auto") == []
