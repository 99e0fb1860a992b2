"""GPT-OSS: attention sinks, alternating windows, and experts with a clamped gate.

arXiv 2508.10925, section 2. What the paper leaves open follows transformers: experts are stored
fused, input-major, with gate and up interleaved; the router has a bias, and its weights are the
softmax over the chosen experts. Published MXFP4 checkpoints must be dequantised first.
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from interlock.core.model import AttentionSpec
from interlock.plugins.models.experts import expert_counts
from interlock.plugins.models.fields import Fields
from interlock.plugins.models.heads import HeadsFamily, Windows
from interlock.plugins.models.rope_scaling import RopeScaling, read_rope
from interlock.plugins.models.windows import layer_kinds, windows_of

if TYPE_CHECKING:
    from torch import Tensor

    from interlock.plugins.models.decoder import MakeMLP
    from interlock.plugins.models.mixers import MixerOptions

YARN = {
    "rope_type": "yarn",
    "factor": 32.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "truncate": False,
    "original_max_position_embeddings": 4096,
}
"""Rotary scaling of a config that states none."""


class GptOssFamily(HeadsFamily):
    """Every head has a sink, every layer experts."""

    name = "gpt_oss"
    architectures = ("GptOssForCausalLM",)
    head_dim = 64
    norm_eps = 1e-5
    theta = 150_000.0
    positions = 131072

    def windows(self, fields: Fields, layers: int) -> Windows:
        """In every other layer."""
        return windows_of(fields, layer_kinds(fields, layers, every=2), default=128)

    def attention(self, fields: Fields, spec: AttentionSpec) -> AttentionSpec:
        """With sinks."""
        return replace(spec, sinks=True)

    def ropes(self, fields: Fields, positions: int, layers: int) -> tuple[RopeScaling, ...]:
        """One for all layers."""
        config = fields.config
        if not config.get("rope_parameters") and not config.get("rope_scaling"):
            config = {**config, "rope_scaling": YARN}
        return (read_rope(config, positions, self.theta, capped=True),)

    def splits(self, fields: Fields) -> Mapping[str, int]:
        """Experts."""
        experts, _ = expert_counts(fields, "num_local_experts", "num_experts")
        fields.integer("intermediate_size")
        _gate_limits(fields)
        fields.flag("attention_bias", True)
        return {"num_local_experts": experts}

    def mlp(self, fields: Fields, hidden: int) -> "MakeMLP":
        """Experts alone."""
        from interlock.plugins.models.moe import MoeMLP, MoeNames, MoeSpec
        from interlock.plugins.models.router import RouterSpec

        alpha, limit = _gate_limits(fields)
        experts, chosen = expert_counts(fields, "num_local_experts", "num_experts")
        spec = MoeSpec(
            RouterSpec(experts, chosen, "softmax_of_chosen", biased=True),
            inner=fields.integer("intermediate_size"),
            stored="fused_input_major",
            interleaved=True,
            biased=True,
            gating=partial(clamped_gating, alpha=alpha, limit=limit),
            names=MoeNames(router="mlp.router"),
        )
        return lambda load, prefix, _: MoeMLP(load, prefix, hidden, spec)

    def mixer(self, fields: Fields) -> "MixerOptions":
        """One flag for all biases."""
        from interlock.plugins.models.mixers import MixerOptions

        biased = fields.flag("attention_bias", True)
        return MixerOptions(biased, biased)


def clamped_gating(gate: "Tensor", up: "Tensor", alpha: float, limit: float) -> "Tensor":
    """The gate is clamped above, the other factor on both sides, which is then moved by 1."""
    gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
    return (up + 1) * gate * (alpha * gate).sigmoid()


def _gate_limits(fields: Fields) -> tuple[float, float]:
    return fields.number("swiglu_alpha", 1.702), fields.number("swiglu_limit", 7.0)
