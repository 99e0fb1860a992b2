"""Gemma 2 and Gemma 3 (text): four norms a layer, local and global layers, soft caps or q/k norms.

Gemma 2 (arXiv 2408.00118, section 2), Gemma 3 (arXiv 2503.19786, section 2). What the papers leave
open follows transformers: norms multiply by 1 + weight, embeddings by sqrt(hidden) in the model's
dtype, scores by query_pre_attn_scalar ** -0.5.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from interlock.core.errors import CheckpointError
from interlock.core.model import AttentionSpec, Decoder, ModelDescription, ModelFamily
from interlock.core.parallel import Placement
from interlock.plugins.models.fields import Fields
from interlock.plugins.models.rope_scaling import RopeScaling, read_rope
from interlock.plugins.models.windows import FULL, SLIDING, LayerKind, layer_kinds, windows_of

if TYPE_CHECKING:
    from torch import Tensor

    from interlock.core.weights import WeightSource

THETA: dict[LayerKind, tuple[str, float]] = {
    FULL: ("rope_theta", 1_000_000.0),
    SLIDING: ("rope_local_base_freq", 10_000.0),
}
"""Gemma 3's rotary base by kind of layer: the field of older files, and its default."""


class GemmaFamily(ModelFamily):
    """Gemma 2 and 3 decoders."""

    name = "gemma"
    architectures = ("Gemma2ForCausalLM", "Gemma3ForCausalLM")
    refused = MappingProxyType(
        {
            "Gemma3ForConditionalGeneration": "it wraps a vision tower, whose image tokens see "
            "each other in both directions, which a causal cache cannot hold; text alone is served "
            "as Gemma3ForCausalLM: save the language model, with its text_config as config.json"
        }
    )

    def describe(self, config: Mapping[str, Any], name: str) -> ModelDescription:
        """Raises CheckpointError with every field that is missing, wrong or not supported."""
        fields = Fields(config)
        hidden, layers = fields.integer("hidden_size"), fields.integer("num_hidden_layers")
        heads, kv_heads = _heads(fields)
        head_dim = fields.integer("head_dim", 256)
        fields.require(head_dim % 2 == 0, f"head_dim={head_dim} is odd and cannot be rotated")
        inner, vocab = fields.integer("intermediate_size"), fields.integer("vocab_size")
        fields.number("rms_norm_eps", 1e-6)
        fields.choice("hidden_activation", "gelu_pytorch_tanh", ("gelu_pytorch_tanh",))
        scale = fields.number("query_pre_attn_scalar", 256) ** -0.5
        positions = fields.integer("max_position_embeddings", 131072 if is_3(config) else 8192)
        _check_direction(fields)
        softcap = _softcap(fields)
        fields.optional_number("final_logit_softcapping", None)
        kinds = _kinds(fields, layers)
        windows = windows_of(fields, kinds, default=4096)
        fields.check()
        _ropes(config, kinds, positions)
        attention = tuple(
            AttentionSpec(
                "heads", heads, kv_heads, head_dim, head_dim, scale, window, softcap=softcap
            )
            for window in windows
        )
        return ModelDescription(
            name, self.name, vocab, hidden, layers, positions, attention, "float32", config,
            splits={"intermediate_size": inner},
        )  # fmt: skip

    def build(
        self, description: ModelDescription, weights: "WeightSource", placement: Placement
    ) -> Decoder:
        """The decoder; CheckpointError lists tensors that do not match."""
        from interlock.plugins.models.decoder import Architecture, BlockNorms, CausalDecoder
        from interlock.plugins.models.mixers import MixerOptions

        config, hidden = description.config, description.hidden_size
        fields = Fields(config)
        inner, eps = fields.integer("intermediate_size"), fields.number("rms_norm_eps", 1e-6)
        biased, kinds = fields.flag("attention_bias", False), _kinds(fields, description.num_layers)
        architecture = Architecture(
            norm_eps=eps,
            ropes=_ropes(config, kinds, description.max_positions),
            tied=fields.flag("tie_word_embeddings", True),
            mlp=lambda load, prefix, _: load.gated_mlp(
                f"{prefix}.mlp", hidden, load.share(inner), gating=geglu
            ),
            mixer=MixerOptions(
                biased, biased, "head" if is_3(config) else "none", norm_eps=eps, norm_offset=1.0
            ),
            norms=BlockNorms(
                after_attention="post_attention_layernorm",
                before_mlp="pre_feedforward_layernorm",
                after_mlp="post_feedforward_layernorm",
                offset=1.0,
            ),
            embedding_scale=hidden**0.5,
            logit_softcap=fields.optional_number(
                "final_logit_softcapping", None if is_3(config) else 30.0
            ),
        )
        fields.check()
        return CausalDecoder(description, architecture, weights, placement)


def geglu(gate: "Tensor", up: "Tensor") -> "Tensor":
    """gelu(gate) * up with the tanh form of gelu (arXiv 2002.05202, arXiv 1606.08415)."""
    from torch.nn.functional import gelu

    return gelu(gate, approximate="tanh") * up


def is_3(config: Mapping[str, Any]) -> bool:
    """True for Gemma 3, which has q/k norms and two rotary bases instead of soft caps."""
    return "Gemma3ForCausalLM" in (config.get("architectures") or ())


def _heads(fields: Fields) -> tuple[int, int]:
    heads, kv_heads = fields.integer("num_attention_heads"), fields.integer("num_key_value_heads")
    fields.require(
        heads % kv_heads == 0,
        f"num_attention_heads={heads} is not a multiple of num_key_value_heads={kv_heads}",
    )
    return heads, kv_heads


def _check_direction(fields: Fields) -> None:
    stated = fields.config.get("use_bidirectional_attention")
    fields.require(
        stated in (None, False),
        f"use_bidirectional_attention={stated!r} is refused: rows that later tokens change cannot "
        "be cached",
    )


def _softcap(fields: Fields) -> float | None:
    """The cap of attention scores. Gemma 3 has none: a stated one is read by some engines only."""
    if not is_3(fields.config):
        return fields.optional_number("attn_logit_softcapping", 50.0)
    stated = fields.config.get("attn_logit_softcapping")
    fields.require(
        stated is None,
        f"attn_logit_softcapping={stated!r} is not null: Gemma 3 normalises queries and keys "
        "instead, and transformers ignores the field",
    )
    return None


def _kinds(fields: Fields, layers: int) -> tuple[LayerKind, ...]:
    every = fields.integer("sliding_window_pattern", 6) if is_3(fields.config) else 2
    return layer_kinds(fields, layers, every)


def _ropes(
    config: Mapping[str, Any], kinds: tuple[LayerKind, ...], positions: int
) -> tuple[RopeScaling, ...]:
    """Each layer's rotary scaling, or one for all (Gemma 2)."""
    if not is_3(config):
        return (read_rope(config, positions),)
    stated = config.get("rope_parameters")
    if stated is None:
        key, stated = "rope_scaling", {FULL: config.get("rope_scaling")}
    elif not isinstance(stated, Mapping) or not stated.keys() <= {FULL, SLIDING}:
        raise CheckpointError(f"rope_parameters={stated!r} is not an object of {FULL}, {SLIDING}")
    elif config.get("rope_scaling"):
        raise CheckpointError("rope_parameters and rope_scaling are both given: keep the first")
    else:
        key = "rope_parameters"
    scaling: dict[LayerKind, RopeScaling] = {}
    for kind, (field, default) in THETA.items():
        own = {"rope_theta": config.get(field) or default, key: stated.get(kind)}
        rest = {"rope_parameters": None, "rope_scaling": None}
        try:
            scaling[kind] = read_rope({**config, **rest, **own}, positions)
        except CheckpointError as error:
            raise CheckpointError(f"{kind}: {error}") from error
    return tuple(scaling[kind] for kind in kinds)
