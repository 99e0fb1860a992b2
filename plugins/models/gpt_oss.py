"""GPT-OSS: attention sinks, alternating windows, and experts with a clamped gate.

arXiv 2508.10925, section 2. What the paper leaves open follows transformers: experts are stored
fused, input-major, with gate and up interleaved; the router has a bias, and its weights are the
softmax over the chosen experts.
"""

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from interlock.core.model import AttentionSpec, Decoder, ModelDescription, ModelFamily
from interlock.core.parallel import Placement
from interlock.plugins.models.fields import Fields
from interlock.plugins.models.rope_scaling import RopeScaling, read_rope
from interlock.plugins.models.windows import layer_kinds, windows_of

if TYPE_CHECKING:
    from torch import Tensor

    from interlock.core.weights import WeightSource
    from interlock.plugins.models.moe import MoeSpec

YARN = {
    "rope_type": "yarn",
    "factor": 32.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "truncate": False,
    "original_max_position_embeddings": 4096,
}
"""Rotary scaling of a config that states none."""
THETA = 150_000.0


class GptOssFamily(ModelFamily):
    """GPT-OSS decoders with plain weights (published MXFP4 ones must be dequantised first)."""

    name = "gpt_oss"
    architectures = ("GptOssForCausalLM",)

    def describe(self, config: Mapping[str, Any], name: str) -> ModelDescription:
        """Raises CheckpointError with every field that is missing, wrong or not supported."""
        fields = Fields(config)
        hidden, layers = fields.integer("hidden_size"), fields.integer("num_hidden_layers")
        heads = fields.integer("num_attention_heads")
        kv_heads = fields.integer("num_key_value_heads", heads)
        fields.require(
            heads % kv_heads == 0,
            f"num_attention_heads={heads} is not a multiple of num_key_value_heads={kv_heads}",
        )
        head_dim = fields.integer("head_dim", 64)
        fields.require(head_dim % 2 == 0, f"head_dim={head_dim} is odd and cannot be rotated")
        fields.number("rms_norm_eps", 1e-5)
        fields.choice("hidden_act", "silu", ("silu", "swish"))
        fields.flag("attention_bias", True)
        vocab = fields.integer("vocab_size")
        positions = fields.integer("max_position_embeddings", 131072)
        _check_experts(fields)
        windows = windows_of(fields, layer_kinds(fields, layers, every=2), default=128)
        fields.check()
        _rope(config, positions)
        attention = tuple(
            AttentionSpec(
                "heads", heads, kv_heads, head_dim, head_dim, head_dim**-0.5, window, sinks=True
            )
            for window in windows
        )
        return ModelDescription(
            name, self.name, vocab, hidden, layers, positions, attention, "float32", config,
            splits={"num_local_experts": fields.integer("num_local_experts")},
        )  # fmt: skip

    def build(
        self, description: ModelDescription, weights: "WeightSource", placement: Placement
    ) -> Decoder:
        """The decoder; CheckpointError lists tensors that do not match."""
        from interlock.plugins.models.decoder import Architecture, CausalDecoder
        from interlock.plugins.models.mixers import MixerOptions
        from interlock.plugins.models.moe import MoeMLP

        config, hidden = description.config, description.hidden_size
        fields = Fields(config)
        biased, moe = fields.flag("attention_bias", True), _moe_spec(fields)
        architecture = Architecture(
            norm_eps=fields.number("rms_norm_eps", 1e-5),
            ropes=(_rope(config, description.max_positions),),
            tied=fields.flag("tie_word_embeddings", False),
            mlp=lambda load, prefix, _: MoeMLP(load, prefix, hidden, moe),
            mixer=MixerOptions(biased, biased),
        )
        fields.check()
        return CausalDecoder(description, architecture, weights, placement)


def clamped_gating(gate: "Tensor", up: "Tensor", alpha: float, limit: float) -> "Tensor":
    """(up + 1) * gate * sigmoid(alpha * gate), gate at most `limit`, up within +- `limit`."""
    gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
    return (up + 1) * gate * (alpha * gate).sigmoid()


def _rope(config: Mapping[str, Any], positions: int) -> RopeScaling:
    stated = {"rope_theta": config.get("rope_theta") or THETA}
    if not config.get("rope_parameters") and not config.get("rope_scaling"):
        stated["rope_parameters"] = YARN
    return read_rope({**config, **stated}, positions)


def _check_experts(fields: Fields) -> None:
    experts, chosen = fields.integer("num_local_experts"), fields.integer("num_experts_per_tok")
    fields.require(
        chosen <= experts,
        f"num_experts_per_tok={chosen} is more than num_local_experts={experts}",
    )
    fields.integer("intermediate_size")
    fields.number("swiglu_alpha", 1.702)
    fields.number("swiglu_limit", 7.0)


def _moe_spec(fields: Fields) -> "MoeSpec":
    from interlock.plugins.models.moe import MoeNames, MoeSpec
    from interlock.plugins.models.router import RouterSpec

    alpha, limit = fields.number("swiglu_alpha", 1.702), fields.number("swiglu_limit", 7.0)
    return MoeSpec(
        RouterSpec(
            fields.integer("num_local_experts"),
            fields.integer("num_experts_per_tok"),
            "softmax_of_chosen",
            biased=True,
        ),
        inner=fields.integer("intermediate_size"),
        stored="fused_input_major",
        interleaved=True,
        biased=True,
        gating=partial(clamped_gating, alpha=alpha, limit=limit),
        names=MoeNames(router="mlp.router"),
    )
