"""One causal decoder for all families, made from an architecture description.

Legend: T tokens, E hidden size, R rotated size.
"""

from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn import functional

from interlock.core.errors import CheckpointError
from interlock.core.model import Attend, AttentionSpec, ModelDescription
from interlock.core.weights import WeightSource
from interlock.plugins.models.layers import GatedMLP, Loader
from interlock.plugins.models.mixers import HeadsMixer, LatentMixer
from interlock.plugins.models.moe import MoeMLP, MoeSpec
from interlock.plugins.models.rope import rope_tables
from interlock.plugins.models.rope_scaling import RopeScaling

EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"
ROTARY_BUFFERS = "*.rotary_emb.inv_freq"  # written by old versions; the tables are computed


@dataclass(frozen=True)
class Architecture:
    """What a family adds to the model description: everything about layers but their attention.

    The `biased` fields make a bias required; one that is stored is used in any case.
    `unused` names stored tensors that this decoder has no part for.
    """

    inner: int
    norm_eps: float
    rope: RopeScaling
    tied: bool
    attention_biased: bool = False
    output_biased: bool = False
    mlp_biased: bool = False
    query_rank: int | None = None
    interleaved: bool = False
    moe: MoeSpec | None = None
    moe_layers: frozenset[int] = frozenset()
    unused: tuple[str, ...] = field(default=())


class Block:
    """One pre-norm layer: attention and MLP, each added to the residual stream."""

    def __init__(
        self, load: Loader, layer: int, description: ModelDescription, of: Architecture
    ) -> None:
        hidden, prefix = description.hidden_size, f"model.layers.{layer}"
        self.layer = layer
        self.attention_norm = load.norm(f"{prefix}.input_layernorm", hidden, of.norm_eps)
        self.mixer = _mixer(load, f"{prefix}.self_attn", description.attention[layer], hidden, of)
        self.mlp_norm = load.norm(f"{prefix}.post_attention_layernorm", hidden, of.norm_eps)
        self.mlp: MoeMLP | GatedMLP
        if of.moe is not None and layer in of.moe_layers:
            self.mlp = MoeMLP(load, f"{prefix}.mlp", hidden, of.moe)
        else:
            self.mlp = GatedMLP(load, f"{prefix}.mlp", hidden, of.inner, of.mlp_biased)

    def __call__(self, x_TE: Tensor, rotation: tuple[Tensor, Tensor], attend: Attend) -> Tensor:
        """The residual stream after this layer."""
        x_TE = x_TE + self.mixer(self.attention_norm(x_TE), rotation, self.layer, attend)
        return x_TE + self.mlp(self.mlp_norm(x_TE))


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
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.description = description
        load = Loader(weights, dtype, device)
        vocab, hidden = description.vocab_size, description.hidden_size
        self.embedding_VE = load.rows(EMBEDDING, vocab, hidden)
        self.blocks = [
            Block(load, layer, description, architecture) for layer in range(description.num_layers)
        ]
        self.norm = load.norm("model.norm", hidden, architecture.norm_eps)
        self.head_VE = _head(load, architecture.tied, self.embedding_VE)
        weights.finish(ignore=(*architecture.unused, ROTARY_BUFFERS))
        spec = description.attention[0]
        size = spec.rope_dim if spec.form == "latent" else spec.head_dim
        self.cos_PR, self.sin_PR = rope_tables(
            architecture.rope, size, description.max_positions, dtype, device
        )

    def forward(self, tokens_T: Tensor, positions_T: Tensor, attend: Attend) -> Tensor:
        """Final-norm features [T, E], calling `attend` once per layer in layer order."""
        rotation = self.cos_PR[positions_T][:, None], self.sin_PR[positions_T][:, None]
        x_TE = self.embed(tokens_T)
        for block in self.blocks:
            x_TE = block(x_TE, rotation, attend)
        return self.norm(x_TE)

    def logits(self, features_TE: Tensor) -> Tensor:
        """[T, vocab_size] in the model's dtype."""
        return functional.linear(features_TE, self.head_VE)

    def embed(self, tokens_T: Tensor) -> Tensor:
        """Input embeddings [T, E]."""
        return functional.embedding(tokens_T, self.embedding_VE)


def _mixer(
    load: Loader, prefix: str, spec: AttentionSpec, hidden: int, of: Architecture
) -> HeadsMixer | LatentMixer:
    if spec.form == "heads":
        return HeadsMixer(load, prefix, spec, hidden, of.attention_biased, of.output_biased)
    return LatentMixer(
        load, prefix, spec, hidden, of.attention_biased, of.query_rank, of.interleaved
    )


def _head(load: Loader, tied: bool, embedding_VE: Tensor) -> Tensor:
    """The output matrix: its own, or the embedding.

    A stored head beside `tie_word_embeddings` must equal the embedding: engines disagree on which
    one is meant when it does not.
    """
    if tied and not load.weights.has(HEAD):
        return embedding_VE
    head_VE = load.rows(HEAD, *embedding_VE.shape)
    if not tied:
        return head_VE
    if not torch.equal(head_VE, embedding_VE):
        raise CheckpointError(
            f"{load.weights.title}: tie_word_embeddings is true, but {HEAD} is stored and differs "
            f"from {EMBEDDING}: set tie_word_embeddings to false to use the stored head, or remove "
            "the tensor"
        )
    return embedding_VE
