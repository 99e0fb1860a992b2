"""One causal decoder for all families, made from an architecture description.

Legend: T tokens, E hidden size, R rotated size.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from interlock.core.errors import CheckpointError
from interlock.core.model import Attend, ModelDescription, Taps
from interlock.core.parallel import Placement
from interlock.core.weights import WeightSource
from interlock.plugins.models.fused_layers import fused_layers
from interlock.plugins.models.layers import Loader
from interlock.plugins.models.mixers import HeadsMixer, LatentMixer, MixerOptions
from interlock.plugins.models.norms import RMSNorm
from interlock.plugins.models.products import make_product
from interlock.plugins.models.rope import rope_tables
from interlock.plugins.models.rope_scaling import RopeScaling
from interlock.plugins.models.vocabulary import Embedding, Head, Vocabulary

EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"
ROTARY_BUFFERS = "*.rotary_emb.inv_freq"  # written by old versions; the tables are computed


MakeMLP = Callable[[Loader, str, int], Callable[[Tensor], Tensor]]
"""(loader, prefix of the layer's tensors, layer) -> [T, E] to [T, E]."""


@dataclass(frozen=True)
class BlockNorms:
    """Names of a layer's norms under its prefix; None: there is none at this place.

    `after` norms apply to what attention or MLP add to the residual stream. `offset` is added to
    every norm's stored weight (Gemma stores weight - 1).
    """

    before_attention: str | None = "input_layernorm"
    after_attention: str | None = None
    before_mlp: str | None = "post_attention_layernorm"
    after_mlp: str | None = None
    offset: float = 0.0


@dataclass(frozen=True)
class Architecture:
    """What a family adds to the model description: everything about layers but their attention.

    `ropes` are the rotary scalings by layer, or one for all. `rotated` entries of each head are
    turned, all if None. `embedding_scale`, rounded to the model's dtype, multiplies the first
    layer's input; `logit_softcap` c turns a logit x into c tanh(x / c). `unused` names stored
    tensors that this decoder has no part for.
    """

    norm_eps: float
    ropes: tuple[RopeScaling, ...]
    tied: bool
    mlp: MakeMLP
    mixer: MixerOptions = field(default_factory=MixerOptions)
    norms: BlockNorms = field(default_factory=BlockNorms)
    rotated: int | None = None
    embedding_scale: float | None = None
    logit_softcap: float | None = None
    unused: tuple[str, ...] = field(default=())


class Block:
    """One layer: attention and MLP, each added to the residual stream."""

    def __init__(
        self, load: Loader, layer: int, description: ModelDescription, of: Architecture
    ) -> None:
        hidden, prefix = description.hidden_size, f"model.layers.{layer}"

        def norm(name: str | None) -> RMSNorm | None:
            if name is None:
                return None
            return load.norm(f"{prefix}.{name}", hidden, of.norm_eps, of.norms.offset)

        self.layer = layer
        self.before_attention = norm(of.norms.before_attention)
        spec, attention = description.attention[layer], f"{prefix}.self_attn"
        mixer = HeadsMixer if spec.form == "heads" else LatentMixer
        self.mixer = mixer(load, attention, spec, hidden, of.mixer)
        self.after_attention = norm(of.norms.after_attention)
        self.before_mlp = norm(of.norms.before_mlp)
        self.mlp = of.mlp(load, prefix, layer)
        self.after_mlp = norm(of.norms.after_mlp)

    def __call__(self, x_TE: Tensor, rotation: tuple[Tensor, Tensor], attend: Attend) -> Tensor:
        """The residual stream after this layer."""
        mixed_TE = self.mixer(_apply(self.before_attention, x_TE), rotation, self.layer, attend)
        x_TE = x_TE + _apply(self.after_attention, mixed_TE)
        return x_TE + _apply(self.after_mlp, self.mlp(_apply(self.before_mlp, x_TE)))


def _apply(norm: RMSNorm | None, x_TE: Tensor) -> Tensor:
    return x_TE if norm is None else norm(x_TE)


class CausalDecoder:
    """Implements `interlock.core.model.Decoder`. Positions must be below `max_positions`.

    Each parameter is taken from `weights` once, and `weights.finish` is called: CheckpointError
    lists every tensor that is missing, misshapen or left over.
    """

    def __init__(
        self,
        description: ModelDescription,
        architecture: Architecture,
        weights: WeightSource,
        placement: Placement,
    ) -> None:
        self.description = description
        self.architecture = architecture
        load = Loader(weights, placement)
        vocab, hidden = description.vocab_size, description.hidden_size
        embedding_VE = load.vocabulary(EMBEDDING, vocab, hidden)
        vocabulary = Vocabulary(vocab, load.ranks)
        self.embedding = Embedding(embedding_VE, vocabulary)
        scale = architecture.embedding_scale
        self.embedding_scale: Tensor | None = None
        if scale is not None:  # a Python factor would not be rounded to the model's dtype
            self.embedding_scale = torch.tensor(
                scale, dtype=placement.dtype, device=placement.device
            )
        self.blocks = [
            Block(load, layer, description, architecture) for layer in range(description.num_layers)
        ]
        self.fused = fused_layers(self.blocks)
        self.norm = load.norm(
            "model.norm", hidden, architecture.norm_eps, architecture.norms.offset
        )
        head_VE = _head(load, architecture, embedding_VE, vocab)
        self.head = Head(make_product(head_VE, None, load.rows), vocabulary)
        self.rows = load.rows
        self.weights, self.weight_errors = load.bits, load.weight_errors
        weights.finish(ignore=(*architecture.unused, ROTARY_BUFFERS))
        load.lora.finish()
        spec = description.attention[0]
        size = spec.rope_dim if spec.form == "latent" else spec.head_dim
        self.tables = {
            scaling: rope_tables(
                scaling,
                architecture.rotated or size,
                description.max_positions,
                placement.dtype,
                placement.device,
            )
            for scaling in set(architecture.ropes)
        }
        ropes = architecture.ropes
        self.rope_of = ropes if len(ropes) > 1 else ropes * description.num_layers

    @property
    def capturable(self) -> bool:
        """Whether a pass launches the same work whatever its tokens, and reads nothing back."""
        return all(getattr(block.mlp, "capturable", True) for block in self.blocks)

    @property
    def numerics(self) -> str:
        """See `Placement.numerics`."""
        return self.rows.numerics

    def forward(
        self,
        tokens_T: Tensor,
        positions_T: Tensor,
        attend: Attend,
        taps: Taps | None = None,
        inputs_TE: Tensor | None = None,
    ) -> Tensor:
        """Final-norm features [T, E], calling `attend` once per layer in layer order."""
        rotations = {
            scaling: (cos_PR[positions_T][:, None], sin_PR[positions_T][:, None])
            for scaling, (cos_PR, sin_PR) in self.tables.items()
        }
        x_TE = self._embedded(tokens_T) if inputs_TE is None else inputs_TE
        of_layers = [rotations[scaling] for scaling in self.rope_of]
        if self.fused is not None and self.fused.takes(x_TE):
            own_TE = x_TE if inputs_TE is None else x_TE.clone()  # it is written over
            return self.norm(self.fused(own_TE, of_layers, attend, taps))
        for block, rotation in zip(self.blocks, of_layers, strict=True):
            x_TE = block(x_TE, rotation, attend)
            if taps is not None:
                taps.offer(block.layer, x_TE)
        return self.norm(x_TE)

    def _embedded(self, tokens_T: Tensor) -> Tensor:
        x_TE = self.embed(tokens_T)
        return x_TE if self.embedding_scale is None else x_TE * self.embedding_scale

    def logits(self, features_TE: Tensor) -> Tensor:
        """[T, vocab_size] in the model's dtype."""
        logits_TV = self.head(features_TE)
        cap = self.architecture.logit_softcap
        return logits_TV if cap is None else self.rows.apply(torch.tanh, logits_TV / cap) * cap

    def embed(self, tokens_T: Tensor) -> Tensor:
        """The tokens' rows of the embedding matrix [T, E], not scaled."""
        return self.embedding(tokens_T)


def _head(load: Loader, of: Architecture, embedding_VE: Tensor, vocab: int) -> Tensor:
    """This rank's rows of the output matrix: its own, or the embedding's.

    A stored head beside `tie_word_embeddings` must equal the embedding: engines disagree on which
    one is meant when it does not.
    """
    if of.tied and not load.weights.has(HEAD):
        return embedding_VE
    head_VE = load.vocabulary(HEAD, vocab, embedding_VE.shape[1])
    if not of.tied:
        return head_VE
    if not torch.equal(head_VE, embedding_VE):
        raise CheckpointError(
            f"{load.weights.title}: tie_word_embeddings is true, but {HEAD} is stored and differs "
            f"from {EMBEDDING}: set tie_word_embeddings to false to use the stored head, or remove "
            "the tensor"
        )
    return embedding_VE
