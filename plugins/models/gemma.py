"""Gemma 2 and Gemma 3 (text): four norms a layer, local and global layers, soft caps or q/k norms.

Gemma 2 (arXiv 2408.00118, section 2), Gemma 3 (arXiv 2503.19786, section 2). What the papers leave
open follows transformers: norms multiply by 1 + weight, embeddings by sqrt(hidden) in the model's
dtype, scores by query_pre_attn_scalar ** -0.5.
"""

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING

from interlock.core.model import AttentionSpec, ModelDescription
from interlock.plugins.models.fields import Fields
from interlock.plugins.models.heads import HeadsFamily, Windows, dense_mlp
from interlock.plugins.models.rope_scaling import RopeScaling, read_rope, read_ropes
from interlock.plugins.models.windows import FULL, SLIDING, LayerKind, layer_kinds, windows_of

if TYPE_CHECKING:
    from torch import Tensor

    from interlock.plugins.models.decoder import Architecture, MakeMLP
    from interlock.plugins.models.mixers import MixerOptions


class Gemma2Family(HeadsFamily):
    """Caps on attention scores and on logits; every other layer is local."""

    name = "gemma2"
    architectures = ("Gemma2ForCausalLM",)
    head_dim = 256
    positions = 8192
    tied = True
    final_cap: float | None = 30.0

    def kinds(self, fields: Fields, layers: int) -> tuple[LayerKind, ...]:
        """Local and global layers in turn."""
        return layer_kinds(fields, layers, every=2)

    def windows(self, fields: Fields, layers: int) -> Windows:
        """`sliding_window` tokens in local layers."""
        return windows_of(fields, self.kinds(fields, layers), default=4096)

    def attention(self, fields: Fields, spec: AttentionSpec) -> AttentionSpec:
        """Scaled by a field of its own, capped, and causal."""
        both_ways = fields.config.get("use_bidirectional_attention")
        fields.require(
            both_ways in (None, False),
            f"use_bidirectional_attention={both_ways!r} is refused: rows that later tokens change "
            "cannot be cached",
        )
        scale = fields.number("query_pre_attn_scalar", 256) ** -0.5
        return replace(spec, scale=scale, softcap=self.softcap(fields))

    def softcap(self, fields: Fields) -> float | None:
        """The cap of attention scores; null: none."""
        return fields.optional_number("attn_logit_softcapping", 50.0)

    def activation(self, fields: Fields) -> None:
        """Checks `hidden_activation`; transformers does not read hidden_act."""
        fields.choice("hidden_activation", "gelu_pytorch_tanh", ("gelu_pytorch_tanh",))

    def splits(self, fields: Fields) -> Mapping[str, int]:
        """The MLP's inner size."""
        fields.optional_number("final_logit_softcapping", self.final_cap)
        return {"intermediate_size": fields.integer("intermediate_size")}

    def mlp(self, fields: Fields, hidden: int) -> "MakeMLP":
        """Gated by gelu."""
        return dense_mlp(fields, hidden, gating=geglu)

    def mixer(self, fields: Fields) -> "MixerOptions":
        """One flag for all biases."""
        from interlock.plugins.models.mixers import MixerOptions

        biased = fields.flag("attention_bias", False)
        return MixerOptions(biased, biased, norm_eps=self.eps(fields), norm_offset=1.0)

    def architecture(self, fields: Fields, description: ModelDescription) -> "Architecture":
        """What is added to the stream is normalised as well."""
        from interlock.plugins.models.decoder import BlockNorms

        norms = BlockNorms(
            after_attention="post_attention_layernorm",
            before_mlp="pre_feedforward_layernorm",
            after_mlp="post_feedforward_layernorm",
            offset=1.0,
        )
        return replace(
            super().architecture(fields, description),
            norms=norms,
            embedding_scale=description.hidden_size**0.5,
            logit_softcap=fields.optional_number("final_logit_softcapping", self.final_cap),
        )


class Gemma3Family(Gemma2Family):
    """Norms of queries and keys instead of caps; one layer in six is global, rotated slower."""

    name = "gemma3"
    architectures = ("Gemma3ForCausalLM",)
    refused = MappingProxyType(
        {
            "Gemma3ForConditionalGeneration": "it wraps a vision tower, whose image tokens see "
            "each other in both directions, which a causal cache cannot hold; text alone is served "
            "as Gemma3ForCausalLM: save the language model, with its text_config as config.json"
        }
    )
    positions = 131072
    final_cap = None
    theta = 1e6
    local_theta = 1e4

    def kinds(self, fields: Fields, layers: int) -> tuple[LayerKind, ...]:
        """By `layer_types`, or in older files by `sliding_window_pattern`."""
        return layer_kinds(fields, layers, every=fields.integer("sliding_window_pattern", 6))

    def softcap(self, fields: Fields) -> float | None:
        """None: a stated one is applied by some engines only."""
        stated = fields.config.get("attn_logit_softcapping")
        fields.require(
            stated is None,
            f"attn_logit_softcapping={stated!r} is not null: Gemma 3 normalises queries and keys "
            "instead, and transformers ignores the field",
        )
        return None

    def ropes(self, fields: Fields, positions: int, layers: int) -> tuple[RopeScaling, ...]:
        """By kind of layer; in older files a single scaling is that of the global layers."""
        config = fields.config
        theta = fields.number("rope_theta", self.theta)
        local = fields.number("rope_local_base_freq", self.local_theta)
        fields.check()
        by_kind = read_ropes(config, positions, {FULL: theta, SLIDING: local}) or {
            FULL: read_rope(config, positions, self.theta, capped=True),
            SLIDING: read_rope({"rope_theta": local}, positions),
        }
        return tuple(by_kind[kind] for kind in self.kinds(fields, layers))

    def mixer(self, fields: Fields) -> "MixerOptions":
        """Each head is normalised by itself."""
        return replace(super().mixer(fields), qk_norm="head")


def geglu(gate: "Tensor", up: "Tensor") -> "Tensor":
    """gelu(gate) * up with the tanh form of gelu (arXiv 2002.05202, arXiv 1606.08415)."""
    from torch.nn.functional import gelu

    return gelu(gate, approximate="tanh") * up
