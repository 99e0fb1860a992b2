"""Rotary embedding: rates against the published schemes, refusals, and the rotation itself."""

import math
from typing import Any

import pytest
import torch
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from interlock.core.errors import CheckpointError
from interlock.plugins.models.llama import LlamaFamily
from interlock.plugins.models.rope import rope_rates, rope_tables, rotate
from interlock.plugins.models.rope_scaling import RopeScaling, read_rope, read_ropes

CPU = torch.device("cpu")
LLAMA = {
    "vocab_size": 8,
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 1,
}
LONGROPE = {
    "rope_type": "longrope",
    "original_max_position_embeddings": 1024,
    "short_factor": [1.0 + pair / 32 for pair in range(32)],
    "long_factor": [1.0 + pair for pair in range(32)],
}
LLAMA31 = {
    "rope_type": "llama3",
    "factor": 32.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


def test_llama3_keeps_fast_pairs_blends_the_middle_and_divides_slow_ones() -> None:
    config = {"rope_theta": 500000.0, "rope_scaling": LLAMA31}
    scaled = rope_rates(read_rope(config, 131072), 64, torch.float64)
    plain = 500000.0 ** (-torch.arange(0, 64, 2, dtype=torch.float64) / 64)
    ratio = plain / scaled
    torch.testing.assert_close(ratio[:15], torch.ones(15, dtype=torch.float64))
    assert ((ratio[15:18] > 1.0001) & (ratio[15:18] < 31.999)).all()
    torch.testing.assert_close(ratio[18:], torch.full((14,), 32.0, dtype=torch.float64))


@pytest.mark.parametrize(
    "scaling",
    [
        LLAMA31,
        {"rope_type": "linear", "factor": 4.0},
        {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 512},
        {"rope_type": "yarn", "factor": 40.0, "original_max_position_embeddings": 4096,
         "mscale": 0.707, "mscale_all_dim": 1.0, "beta_fast": 16, "beta_slow": 2},
        {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128,
         "attention_factor": 1.3, "truncate": False},
        {"rope_type": "yarn", "factor": None, "original_max_position_embeddings": 1024},
        {"rope_type": "yarn", "factor": 32.0, "original_max_position_embeddings": 4096,
         "beta_fast": 1.0, "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0},
        {"rope_type": "dynamic", "factor": 4.0},
        LONGROPE,
        {**LONGROPE, "factor": 32.0},
        {**LONGROPE, "attention_factor": 1.19},
    ],
)  # fmt: skip
def test_rates_and_table_factor_equal_transformers(scaling: dict[str, Any]) -> None:
    stated = {"rope_theta": 10000.0, **scaling}
    config = LlamaConfig(head_dim=64, max_position_embeddings=4096, rope_parameters=dict(stated))
    expected, factor = ROPE_INIT_FUNCTIONS[scaling["rope_type"]](config, CPU)
    ours = read_rope({"rope_parameters": stated}, 4096, capped=True)
    torch.testing.assert_close(rope_rates(ours, 64, torch.float32), expected)
    assert ours.table_factor == pytest.approx(factor)


def test_an_fp64_table_is_exact_far_out() -> None:
    cos, sin = rope_tables(read_rope({}, 4096), 64, 4096, torch.float64, CPU)
    angle = 4095 * 10000.0 ** (-2 * 5 / 64)
    assert cos.dtype == sin.dtype == torch.float64
    assert cos[4095, 5].item() == pytest.approx(math.cos(angle), abs=1e-12)
    assert rope_tables(read_rope({}, 8), 64, 8, torch.bfloat16, CPU)[0].dtype == torch.float32


def test_rotation_is_a_complex_product_and_keeps_the_dtype() -> None:
    x = torch.randn(3, 2, 8, dtype=torch.float64)
    cos, sin = (t[[5, 0, 7]][:, None] for t in rope_tables(read_rope({}, 8), 8, 8, x.dtype, CPU))
    turned = torch.complex(x[..., :4], x[..., 4:]) * torch.complex(cos[..., :4], sin[..., 4:])
    torch.testing.assert_close(rotate(x, cos, sin), torch.cat([turned.real, turned.imag], -1))
    assert rotate(x.to(torch.bfloat16), cos, sin).dtype == torch.bfloat16


@pytest.mark.parametrize("key", ["rope_scaling", "rope_parameters"])
@pytest.mark.parametrize(
    ("stated", "reason"),
    [
        ({"type": "dynamic"}, "factor=None is not a number"),
        ({"type": "linear"}, "factor=None is not a number"),
        ({"type": "linear", "factor": 0}, "rope factor=0.0 is not a finite number > 0"),
        ({"type": "linear", "factor": "4"}, "factor='4' is not a number"),
        ({"type": "linear", "factor": 4.0, "rope_theta": 0}, "rope_theta=0.0 is not a finite"),
        ({"type": "default", "rope_theta": []}, r"rope_theta=\[\] is not a number"),
        ({"type": "yarn", "factor": 4.0, "rope_theta": 1.0}, "rope_theta=1.0 is not > 1"),
        ({"type": "yarn", "factor": 4.0, "beta_fast": True}, "beta_fast=True is not a number"),
        ({**LLAMA31, "low_freq_factor": 4.0}, "high_freq_factor=4.0 do not grow"),
        ({**LLAMA31, "low_freq_factor": 0}, "low_freq_factor=0.0 and"),
        ({**LLAMA31, "original_max_position_embeddings": -1}, "embeddings=-1 is not >= 1"),
        ({**LONGROPE, "original_max_position_embeddings": 1}, "ZeroDivisionError"),
        ({"type": "dynamic", "factor": 2.0, "alpha": 1000}, r"not used: \['alpha'\]"),
        ({"rope_type": "longrope", "long_factor": [1.0]}, "incomplete: KeyError"),
        ({**LONGROPE, "short_factor": [0.0] * 32}, "short_factor holds a number that is not"),
        ({"rope_type": "yarm", "factor": 2.0}, "kind 'yarm' is not one of default, linear"),
        ({"rope_type": "default", "factor": 8.0}, r"not used: \['factor'\]"),
        ({"type": "linear", "factor": 2.0, "beta_fast": 3}, r"not used: \['beta_fast'\]"),
        ({"rope_type": "llama3", "factor": 8.0}, "low_freq_factor=None is not a number"),
        ({"rope_type": "default", "partial_rotary_factor": 0.5}, "partial_rotary_factor=0.5"),
        ([1], "is not an object"),
    ],
)
def test_a_scaling_that_would_be_wrong_or_unused_is_refused(
    key: str, stated: Any, reason: str
) -> None:
    with pytest.raises(CheckpointError, match=reason):
        read_rope({key: stated}, 4096, capped=True)


@pytest.mark.parametrize("stated", [{"type": "dynamic", "factor": 2.0}, LONGROPE])
def test_a_family_that_does_not_cap_positions_gets_no_scaling_that_needs_it(
    stated: dict[str, Any],
) -> None:
    with pytest.raises(CheckpointError, match="depend on the length of the sequence"):
        read_rope({"rope_scaling": stated}, 4096)


@pytest.mark.parametrize(
    ("stated", "most"), [({"type": "dynamic", "factor": 2.0}, 4096), (LONGROPE, 1024)]
)
def test_a_scaling_that_depends_on_the_length_ends_at_the_original_length(
    stated: dict[str, Any], most: int
) -> None:
    config = LLAMA | {"max_position_embeddings": 4096, "rope_scaling": stated}
    described = LlamaFamily().describe(config, "m")
    kind = stated.get("type", "longrope")
    assert described.max_positions == most
    assert f"scaling {kind!r} is exact within the original {most} positions" in described.limited_by
    plain = LlamaFamily().describe(config | {"rope_scaling": LLAMA31}, "m")
    assert (plain.max_positions, plain.limited_by) == (4096, "")


def test_yarn_serves_its_factor_times_the_original_length() -> None:
    """Qwen's cards leave max_position_embeddings at the original length."""
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}
    for stated, served in ((32768, 131072), (131072, 131072), (262144, 262144)):
        config = {**LLAMA, "max_position_embeddings": stated, "rope_scaling": yarn}
        described = LlamaFamily().describe(config, "m")
        assert (described.max_positions, described.limited_by) == (served, "")


def test_a_short_factor_for_each_rotated_pair_is_needed() -> None:
    config = LLAMA | {"rope_scaling": {**LONGROPE, "short_factor": [1.0] * 31}}
    with pytest.raises(CheckpointError, match="short_factor has 31 numbers, but 32 pairs"):
        LlamaFamily().describe(config, "m")


def test_a_scaling_is_read_for_each_layer_type() -> None:
    stated = {"full": {"rope_type": "linear", "factor": 2.0}, "sliding": {"rope_theta": 5.0}}
    thetas = {"full": 9.0, "sliding": 7.0}
    both = read_ropes({"rope_parameters": stated, "rope_theta": 3.0}, 64, thetas)
    assert both == {"full": RopeScaling(9.0, "linear", 2.0), "sliding": RopeScaling(5.0)}
    one = read_ropes({"rope_parameters": {"full": None}}, 64, thetas)
    assert one == {"full": RopeScaling(9.0), "sliding": RopeScaling(7.0)}
    assert read_ropes({"rope_scaling": stated}, 64, thetas) is None


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({"rope_parameters": {"chunked": {}}}, "is not an object of full, sliding, whose"),
        ({"rope_parameters": {"factor": 2.0}}, "is not an object of full, sliding, whose"),
        ({"rope_parameters": {"full": {}}, "rope_scaling": {"factor": 2.0}}, "both given"),
        ({"rope_parameters": {"sliding": {"rope_type": "yarm"}}}, "sliding: rope_parameters of"),
        ({"rope_parameters": {"full": [1]}}, r"full: rope_parameters=\[1\] is not an object"),
    ],
)
def test_scalings_by_layer_type_that_cannot_be_read_are_refused(
    config: dict[str, Any], reason: str
) -> None:
    with pytest.raises(CheckpointError, match=reason):
        read_ropes(config, 64, {"full": 9.0, "sliding": 9.0})


def test_the_softmax_factor_is_the_square_of_yarns_mscale() -> None:
    stated = {"type": "yarn", "factor": 40, "mscale": 1.0, "mscale_all_dim": 1.0}
    mscale = 0.1 * math.log(40) + 1
    assert read_rope({"rope_scaling": stated}, 4096).softmax_factor == pytest.approx(mscale**2)
    assert read_rope({}, 4096).softmax_factor == 1.0
