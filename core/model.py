"""The contract of a model: its description (no weights), its decoder, and its family plugin.

Legend: T tokens, E hidden size, H query heads, K key/value heads, D head size, N and R the parts of
an MLA query without and with rotary embedding, C latent rank, V value head size.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, Protocol

from interlock.core.parallel import Placement, Ranks

if TYPE_CHECKING:
    from torch import Tensor

    from interlock.core.model_files import ModelFiles
    from interlock.core.operations import Operations
    from interlock.core.weights import WeightSource

AttentionForm = Literal["heads", "latent"]


@dataclass(frozen=True)
class AttentionSpec:
    """What one layer's attention computes; every backend takes these as parameters.

    form "heads": H query heads over K key/value heads of size head_dim (values: v_head_dim).
    form "latent": MLA; num_kv_heads is 1 latent of latent_rank + rope_dim, head_dim is
    nope_dim + rope_dim. `window` W: a query sees itself and the W - 1 tokens before it.
    `softcap` c: a score s (after the scale, before the mask) becomes c tanh(s / c) (Gemma 2,
    arXiv 2408.00118, section 2). `sinks` (heads only): every query head has a learned logit that
    joins its softmax's denominator and has no value, so weights may sum to less than 1 (GPT-OSS,
    arXiv 2508.10925, section 2.2); it is neither scaled nor capped.
    """

    form: AttentionForm
    num_heads: int
    num_kv_heads: int
    head_dim: int
    v_head_dim: int
    scale: float
    window: int | None = None
    latent_rank: int = 0
    nope_dim: int = 0
    rope_dim: int = 0
    softcap: float | None = None
    sinks: bool = False

    def on(self, ranks: Ranks) -> "AttentionSpec":
        """What one rank computes: its share of the query heads and the key/value heads they read.

        Where there are more ranks than key/value heads, ranks hold copies of one; a latent is
        copied to every rank. H must be a multiple of the ranks, and K of them or they of K.
        """
        return replace(
            self,
            num_heads=self.num_heads // ranks.size,
            num_kv_heads=max(1, self.num_kv_heads // ranks.size),
        )


@dataclass(frozen=True)
class ModelDescription:
    """Everything that is decided before a weight is read. `config` is the parsed config.json.

    `splits` names the sizes, besides heads and vocabulary, that must be multiples of the ranks for
    the family to build a rank's part; None: it builds whole models only. `limited_by` says why
    there are no more positions where that is not just the length that the config states.
    """

    name: str
    family: str
    vocab_size: int
    hidden_size: int
    num_layers: int
    max_positions: int
    attention: tuple[AttentionSpec, ...]
    dtype: str
    config: Mapping[str, Any]
    eos_token_ids: tuple[int, ...] = ()
    directory: Path | None = None
    splits: Mapping[str, int] | None = None
    files: "ModelFiles | None" = field(default=None, compare=False)
    """None for a model that only has a shape."""
    limited_by: str = ""

    @property
    def forms(self) -> frozenset[AttentionForm]:
        """The attention forms that occur in the model."""
        return frozenset(spec.form for spec in self.attention)


@dataclass(frozen=True)
class HeadsInput:
    """Inputs of one layer's attention in "heads" form, rotary embedding applied.

    `sinks_H`, fp32 or wider: the layer's sink logits, given exactly if its spec has `sinks`.
    """

    q_THD: "Tensor"
    k_TKD: "Tensor"
    v_TKV: "Tensor"
    sinks_H: "Tensor | None" = None


@dataclass(frozen=True)
class LatentInput:
    """Inputs of one layer's MLA, rotary embedding applied to the R parts.

    up_k_HNC and up_v_HVC expand the latent: k_nope[h] = up_k[h] @ latent, v[h] = up_v[h] @ latent.
    """

    q_nope_THN: "Tensor"
    q_rope_THR: "Tensor"
    latent_TC: "Tensor"
    k_rope_TR: "Tensor"
    up_k_HNC: "Tensor"
    up_v_HVC: "Tensor"


AttentionInput = HeadsInput | LatentInput

Attend = Callable[[int, AttentionSpec, AttentionInput], "Tensor"]
"""(layer, spec, inputs) -> [T, H, V]: writes the new rows into the cache and attends."""


class Taps:
    """Keeps the outputs of some layers during a decoder's pass."""

    def __init__(self, layers: tuple[int, ...] = ()) -> None:
        self.layers = layers
        self._kept: dict[int, Tensor] = {}

    def offer(self, layer: int, x_TE: "Tensor") -> None:
        """A layer's output, kept if it was asked for."""
        if layer in self.layers:
            self._kept[layer] = x_TE

    def outputs(self) -> "tuple[Tensor, ...]":
        """What was asked for, in that order."""
        return tuple(self._kept[layer] for layer in self.layers)


class Decoder(Protocol):
    """A causal decoder that leaves attention and its cache to the caller."""

    description: ModelDescription

    def forward(
        self,
        tokens_T: "Tensor",
        positions_T: "Tensor",
        attend: Attend,
        taps: "Taps | None" = None,
        inputs_TE: "Tensor | None" = None,
    ) -> "Tensor":
        """Final-norm features [T, E], calling `attend` once per layer in layer order.

        Each layer (0 is the first) offers to `taps` what it leaves in the residual stream [T, E],
        the last one too, before the final norm. With `inputs_TE` the first layer reads these rows
        in place of the tokens' embeddings (an MTP layer is a decoder of one layer).
        """
        ...

    def logits(self, features_TE: "Tensor") -> "Tensor":
        """[T, vocab_size] in the model's dtype or wider; padding entries of the head are cut."""
        ...

    def embed(self, tokens_T: "Tensor") -> "Tensor":
        """The tokens' rows of the embedding matrix [T, E], before what a family scales them by.

        That is what drafter heads share with their target: they were trained on the stored matrix.
        """
        ...


class ModelFamily(ABC):
    """Reads one family of Hugging Face configs and builds its decoder."""

    name: str
    architectures: tuple[str, ...]
    """Values of config.json's `architectures` that this family serves."""
    refused: Mapping[str, str] = MappingProxyType({})
    """Architectures close to it that cannot be served, each with the reason and what to do."""

    @abstractmethod
    def describe(self, config: Mapping[str, Any], name: str) -> ModelDescription:
        """The description; raises CheckpointError naming the field for what is not supported."""

    @abstractmethod
    def build(
        self,
        description: ModelDescription,
        weights: "WeightSource",
        placement: Placement,
    ) -> Decoder:
        """The decoder, or this rank's part of it, each parameter taken from `weights` once."""

    def operations(self, placement: Placement) -> "Operations":
        """What its layers compute with in such a place; here: torch."""
        from interlock.core.operations import Operations  # with torch

        return Operations()
