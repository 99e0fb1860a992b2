"""EAGLE-1 heads: fc, then one Llama layer without its first norm, over the target's features.

    x_p = fc(cat[embedding of the token at p + 1, feature of p]);  layer output = feature of p + 1

Row p pairs the target's final-norm feature of position p with the token at p + 1, sits at rotary
position p and estimates the feature of p + 1; the target's own head turns that into the token at
p + 2 (arXiv 2401.15077, section 3, with the tensor names of SafeAILab's checkpoints).

A token's embedding is its row of the head's own matrix, or of the target's as it is stored: where a
target scales embeddings (Gemma), its head does not, because heads are trained on the matrix alone.
The target's cap on logits bends a head's logits as well, which changes no greedy draft.

Legend: N rows, R requests in a pass, E hidden size.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from interlock.core.component import BuildContext
from interlock.core.drafter import DraftContext, DraftRows, FeatureDrafter
from interlock.core.errors import ConfigError
from interlock.core.model import Attend
from interlock.plugins.speculative.heads.chain import ChainDrafter
from interlock.plugins.speculative.heads.directory import open_head
from interlock.plugins.speculative.heads.fields import Fields, LayerShape, read_layer
from interlock.plugins.speculative.heads.growth import DynamicGrowth, SampledGrowth, StaticGrowth
from interlock.plugins.speculative.heads.layer import Layer, Taker
from interlock.plugins.speculative.heads.options import (
    Dynamic,
    Eagle2Config,
    Eagle3Config,
    EagleConfig,
    draws,
    tree_shape,
)
from interlock.plugins.speculative.heads.pairs import PairHead
from interlock.plugins.speculative.heads.trees import TreeDrafter


class EagleHead(PairHead):
    """Takes every tensor of `source` once and finishes it: missing, misshapen and unexpected
    tensors are one CheckpointError. `number` is the layer that its cache rows are stored under."""

    def __init__(
        self,
        shape: LayerShape,
        vocab_size: int,
        max_positions: int,
        number: int,
        source: Taker,
    ) -> None:
        self.fc = source.product(2 * shape.hidden, {"fc": shape.hidden})
        self.dtype = source.dtype
        self.layer = Layer(shape, number, source.under("layers.0."))
        self.embed_tokens = source.optional("embed_tokens", vocab_size, shape.hidden)
        """The head's own embedding; None: the target's is used."""
        source.weights.finish()
        self.specs = (self.layer.spec,)
        self.max_positions = max_positions

    def carried(self, rows: DraftRows) -> Tensor:
        """See PairHead: the target's features."""
        return rows.features_NE

    def forward(
        self,
        carried_NE: Tensor,
        next_tokens_N: Tensor,
        positions_N: Tensor,
        attend: Attend,
        context: DraftContext,
        wanted_R: Tensor | None = None,
    ) -> Tensor:
        """See PairHead: the estimated features that follow these rows."""
        embedded_NE = embedded(self.embed_tokens, next_tokens_N, context)
        pair_NI = torch.cat([embedded_NE.to(self.dtype), carried_NE.to(self.dtype)], dim=-1)
        x_NE = self.fc(pair_NI)
        rotation = self.layer.rotation(positions_N)
        return self.layer.forward(x_NE, x_NE, rotation, attend, wanted_R)

    def logits(self, handed_RE: Tensor, context: DraftContext) -> Tensor:
        """See PairHead: the target's own head."""
        return context.decoder.logits(handed_RE)


def embedded(own: Tensor | None, tokens_N: Tensor, context: DraftContext) -> Tensor:
    """Rows [N, E] of the head's own embedding, or of the target's as it is stored."""
    return context.decoder.embed(tokens_N) if own is None else F.embedding(tokens_N, own)


def build(config: EagleConfig | Eagle2Config, context: BuildContext) -> FeatureDrafter:
    """The drafter with the weights of `config.path`, in the engine's dtype.

    Raises CheckpointError that names fields or tensors when the head is not what its config says
    or was trained for another target; ConfigError when there is no directory to look in.
    """
    files, model = open_head(config, context, "eagle"), context.model
    fields = Fields(files.json("config.json") or {}, files.where("config.json"))
    shape = read_layer(fields, model)
    vocab_size = fields.integer("vocab_size")
    max_positions = fields.integer("max_position_embeddings", model.max_positions)
    fields.only("num_hidden_layers", 1)
    fields.same("vocab_size", vocab_size, model.vocab_size, model)
    fields.finish()
    source = Taker(files.weights(), context)
    head = EagleHead(shape, vocab_size, max_positions, model.num_layers, source)
    return drafter_of(config, head, vocab_size)


def drafter_of(
    config: EagleConfig | Eagle2Config | Eagle3Config, head: PairHead, known: int
) -> FeatureDrafter:
    """What drafts chains or trees as the options say, over a head that knows so many tokens."""
    shape = tree_shape(config)
    if isinstance(shape, Dynamic):
        return TreeDrafter(head, config.num_drafts, DynamicGrowth(shape.depth, shape.top_k))
    sampled = draws(config)
    if shape is None:
        return ChainDrafter(head, config.num_drafts, sampled)
    if shape.width > known:
        raise ConfigError(
            f"spec.tree has {shape.width} siblings, but the head knows {known} tokens"
        )
    growth = SampledGrowth(shape) if sampled else StaticGrowth(shape)
    return TreeDrafter(head, config.num_drafts, growth)
