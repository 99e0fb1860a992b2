"""What families with query heads over key/value heads share, and where they may differ."""

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from interlock.core.model import AttentionSpec, Decoder, ModelDescription, ModelFamily
from interlock.core.parallel import Placement
from interlock.plugins.models.fields import Fields
from interlock.plugins.models.rope_scaling import (
    DEFAULT_THETA,
    RopeScaling,
    exact_positions,
    read_rope,
)

if TYPE_CHECKING:
    from interlock.core.operations import Operations
    from interlock.core.weights import WeightSource
    from interlock.plugins.models.decoder import Architecture, MakeMLP
    from interlock.plugins.models.layers import Gating
    from interlock.plugins.models.mixers import MixerOptions

FLAGS = (
    "attention_bias", "mlp_bias", "norm_topk_prob", "qkv_bias", "rope_interleave",
    "tie_word_embeddings", "use_qk_norm",
)  # fmt: skip
"""Of all families."""
Windows = tuple[int | None, ...]
"""Each layer's window; None sees everything."""


class HeadsFamily(ModelFamily):
    """Grouped-query attention with rotary embedding, and an MLP a layer.

    A family says how it differs from Llama: by the values below, which hold where a config does
    not state them, and by the methods up to `architecture`. Each is called with a reader whose
    `check` follows, so that all problems of a config are reported at once.
    """

    head_dim: int | None = None
    """None: hidden_size / num_attention_heads."""
    norm_eps = 1e-6
    theta = DEFAULT_THETA
    positions: int | None = None
    tied = False
    partial_rotary = False
    """True: `rotated` may be less than a head."""

    def windows(self, fields: Fields, layers: int) -> Windows:
        """Each layer's window; here: all see everything."""
        return (None,) * layers

    def attention(self, fields: Fields, spec: AttentionSpec) -> AttentionSpec:
        """What every layer's attention computes, given a plain one without a window; here: that."""
        return spec

    def activation(self, fields: Fields) -> None:
        """Checks what the MLPs are gated by; here: silu."""
        fields.choice("hidden_act", "silu", ("silu", "swish"))

    def rotated(self, fields: Fields, head_dim: int) -> int:
        """Entries of a head that are rotated; here: all."""
        return head_dim

    def ropes(self, fields: Fields, positions: int, layers: int) -> tuple[RopeScaling, ...]:
        """The rotary scaling of each layer, or one for all. Raises CheckpointError."""
        return (
            read_rope(
                fields.config, positions, self.theta, partial=self.partial_rotary, capped=True
            ),
        )

    @abstractmethod
    def splits(self, fields: Fields) -> Mapping[str, int]:
        """Checks the fields of the MLPs; the sizes in them that ranks must divide."""

    @abstractmethod
    def mlp(self, fields: Fields, hidden: int) -> "MakeMLP":
        """Makes a layer's MLP."""

    @abstractmethod
    def mixer(self, fields: Fields) -> "MixerOptions":
        """Biases and norms around attention."""

    def architecture(self, fields: Fields, description: ModelDescription) -> "Architecture":
        """Everything about the layers but their attention."""
        from interlock.plugins.models.decoder import Architecture

        (spec, *_), layers = description.attention, description.num_layers
        return Architecture(
            norm_eps=self.eps(fields),
            ropes=self.ropes(fields, self._positions(fields), layers),
            tied=fields.flag("tie_word_embeddings", self.tied),
            mlp=self.mlp(fields, description.hidden_size),
            mixer=self.mixer(fields),
            rotated=self.rotated(fields, spec.head_dim),
            unused=mtp_tensors(fields, layers),
        )

    def describe(self, config: Mapping[str, Any], name: str) -> ModelDescription:
        """Raises CheckpointError with every field that is missing, wrong or not supported."""
        fields = Fields(config)
        hidden, layers = fields.integer("hidden_size"), fields.integer("num_hidden_layers")
        heads, kv_heads, head_dim = self._heads(fields, hidden)
        rotated = self.rotated(fields, head_dim)
        fields.require(rotated % 2 == 0, f"{rotated} entries of a head are odd and cannot rotate")
        self.eps(fields)
        self.activation(fields)
        check_flags(fields)
        plain = AttentionSpec("heads", heads, kv_heads, head_dim, head_dim, head_dim**-0.5)
        spec = self.attention(fields, plain)
        vocab, stated = fields.integer("vocab_size"), self._positions(fields)
        windows, splits = self.windows(fields, layers), self.splits(fields)
        fields.check()
        ropes = self.ropes(fields, stated, layers)
        for rope in ropes:
            rope.check(rotated)
        positions, limited_by = exact_positions(stated, ropes)
        attention = tuple(replace(spec, window=window) for window in windows)
        return ModelDescription(
            name, self.name, vocab, hidden, layers, positions, attention, "float32", config,
            splits=splits, limited_by=limited_by,
        )  # fmt: skip

    def build(
        self,
        description: ModelDescription,
        weights: "WeightSource",
        placement: Placement,
    ) -> Decoder:
        """The decoder; CheckpointError lists tensors that do not match."""
        from interlock.plugins.models.decoder import CausalDecoder

        fields = Fields(description.config)
        architecture = self.architecture(fields, description)
        fields.check()
        return CausalDecoder(description, architecture, weights, placement)

    def operations(self, placement: Placement) -> "Operations":
        """Compiled and packed ones, as in its layers."""
        from interlock.plugins.models.operations import LayerOperations

        return LayerOperations(placement)

    def eps(self, fields: Fields) -> float:
        """What every norm adds to its mean square."""
        return fields.number("rms_norm_eps", self.norm_eps)

    def _positions(self, fields: Fields) -> int:
        return fields.integer("max_position_embeddings", self.positions)

    def _heads(self, fields: Fields, hidden: int) -> tuple[int, int, int]:
        """Query heads, key/value heads and their size."""
        heads = fields.integer("num_attention_heads")
        kv_heads = fields.integer("num_key_value_heads", heads)
        fields.require(
            heads % kv_heads == 0,
            f"num_attention_heads={heads} is not a multiple of num_key_value_heads={kv_heads}",
        )
        if self.head_dim is None and fields.config.get("head_dim") is None:
            fields.require(
                hidden % heads == 0,
                f"hidden_size={hidden} is not a multiple of num_attention_heads={heads}, and "
                "head_dim is not given",
            )
        head_dim = fields.integer("head_dim", self.head_dim or max(1, hidden // heads))
        fields.require(head_dim % 2 == 0, f"head_dim={head_dim} is odd and cannot be rotated")
        return heads, kv_heads, head_dim


def check_flags(fields: Fields) -> None:
    """Checks fields that are read only when a decoder is built: a description is refused first."""
    for name in FLAGS:
        fields.flag(name, False)
    fields.number("routed_scaling_factor", 1.0)
    _predicted_layers(fields)


def dense_mlp(
    fields: Fields, hidden: int, biased: bool = False, gating: "Gating | None" = None
) -> "MakeMLP":
    """A gated MLP in every layer; by silu if nothing else is given."""
    from interlock.plugins.models.row_tiles import swiglu

    inner = fields.integer("intermediate_size")
    return lambda load, prefix, _: load.gated_mlp(
        f"{prefix}.mlp", hidden, load.share(inner), biased, gating or swiglu
    )


def mtp_tensors(fields: Fields, layers: int) -> tuple[str, ...]:
    """Patterns of layers for multi-token prediction: drafters read them, decoders do not.

    Those behind the decoder's layers are as many as the config states; Qwen's have a prefix.
    """
    stated = (f"model.layers.{layers + n}.*" for n in range(_predicted_layers(fields)))
    return (*stated, "mtp.*")


def _predicted_layers(fields: Fields) -> int:
    return fields.integer("num_nextn_predict_layers", 0, least=0, also="num_mtp_layers")
