"""The Llama family: grouped-query attention with rotary embedding and gated MLPs.

Llama, Mistral (one window for all layers), Ministral (windows by layer), Qwen2 (biased q, k, v).
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from interlock.core.model import AttentionSpec, Decoder, ModelDescription, ModelFamily
from interlock.core.parallel import Placement
from interlock.plugins.models.fields import Fields
from interlock.plugins.models.rope_scaling import read_rope

if TYPE_CHECKING:
    from interlock.core.weights import WeightSource


class LlamaFamily(ModelFamily):
    """Decoders with key/value heads."""

    name = "llama"
    architectures = (
        "LlamaForCausalLM",
        "MistralForCausalLM",
        "MinistralForCausalLM",
        "Qwen2ForCausalLM",
    )

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
        if config.get("head_dim") is None:
            fields.require(
                hidden % heads == 0,
                f"hidden_size={hidden} is not a multiple of num_attention_heads={heads}, and "
                "head_dim is not given",
            )
        head_dim = fields.integer("head_dim", max(1, hidden // heads))
        fields.require(head_dim % 2 == 0, f"head_dim={head_dim} is odd and cannot be rotated")
        inner = fields.integer("intermediate_size")
        fields.number("rms_norm_eps", 1e-6)
        fields.choice("hidden_act", "silu", ("silu", "swish"))
        vocab, positions = fields.integer("vocab_size"), _max_positions(fields)
        windows = _windows(config, fields, layers)
        fields.check()
        read_rope(config, positions)
        attention = tuple(
            AttentionSpec("heads", heads, kv_heads, head_dim, head_dim, head_dim**-0.5, window)
            for window in windows
        )
        return ModelDescription(
            name, self.name, vocab, hidden, layers, positions, attention, "float32", config,
            splits={"intermediate_size": inner},
        )  # fmt: skip

    def build(
        self,
        description: ModelDescription,
        weights: "WeightSource",
        placement: Placement,
    ) -> Decoder:
        """The decoder; CheckpointError lists tensors that do not match."""
        from interlock.plugins.models.decoder import Architecture, CausalDecoder
        from interlock.plugins.models.mixers import MixerOptions

        config, hidden = description.config, description.hidden_size
        fields = Fields(config)
        inner = fields.integer("intermediate_size")
        biased, mlp_biased = fields.flag("attention_bias", False), fields.flag("mlp_bias", False)
        architecture = Architecture(
            norm_eps=fields.number("rms_norm_eps", 1e-6),
            ropes=(read_rope(config, description.max_positions),),
            tied=fields.flag("tie_word_embeddings", False),
            mlp=lambda load, prefix, _: load.gated_mlp(
                f"{prefix}.mlp", hidden, load.share(inner), mlp_biased
            ),
            mixer=MixerOptions(biased or _is(config, "Qwen2ForCausalLM"), biased),
        )
        fields.check()
        return CausalDecoder(description, architecture, weights, placement)


def _max_positions(fields: Fields) -> int:
    return fields.integer("max_position_embeddings", 2048)


def _is(config: Mapping[str, Any], architecture: str) -> bool:
    return architecture in (config.get("architectures") or ())


def _windows(config: Mapping[str, Any], fields: Fields, layers: int) -> list[int | None]:
    """Each layer's window; None sees everything."""
    if _is(config, "LlamaForCausalLM") or config.get("sliding_window") is None:
        return [None] * layers
    if _is(config, "Qwen2ForCausalLM") and not fields.flag("use_sliding_window", False):
        return [None] * layers
    window = fields.integer("sliding_window")
    first = 0
    if _is(config, "Qwen2ForCausalLM"):
        first = fields.integer("max_window_layers", 28, least=0)
    kinds = config.get("layer_types")
    if kinds is None or _is(config, "MistralForCausalLM"):
        return [window if layer >= first else None for layer in range(layers)]
    allowed = {"full_attention": None, "sliding_attention": window}
    known = isinstance(kinds, list) and len(kinds) == layers and set(kinds) <= set(allowed)
    fields.require(
        known, f"layer_types={kinds!r} is not a list of {layers} of {', '.join(allowed)}"
    )
    return [allowed[kind] for kind in kinds] if known else [None] * layers
