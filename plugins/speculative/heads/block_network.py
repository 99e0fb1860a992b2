"""The network of block drafters: layers over a block that also read the target's layers.

    H = hidden_norm(fc(cat of the taps))            a row for each committed position
    keys and values of every layer: those of H, which input_layernorm does not touch, and those of
    the block's normed rows; queries: the block's alone, which see everything, later slots too

DFlash (arXiv 2602.06036) and DSpark (arXiv 2607.05147), with z-lab's and DeepSpec's tensor names.
Legend: N committed rows, R blocks, J slots, T = R * J, E hidden size, D ids that the head knows, V
vocabulary.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from interlock.core.component import BuildContext
from interlock.core.drafter import DraftContext
from interlock.core.model import Attend, AttentionSpec, HeadsInput
from interlock.core.weights import WeightSource
from interlock.plugins.speculative.heads.block_fields import BlockShape
from interlock.plugins.speculative.heads.layer import Layer, Taker


class BlockNetwork:
    """Takes its tensors from `weights`; the caller takes those of further heads and finishes it.

    Cache rows of its layers are stored under numbers after the target's.
    """

    def __init__(
        self,
        shape: BlockShape,
        weights: WeightSource,
        context: BuildContext,
    ) -> None:
        source, hidden = Taker(weights, context), shape.layer.hidden
        self.shape, self.source, first = shape, source, context.model.num_layers
        eps = shape.layer.norm_eps
        self.fc = source.product(len(shape.taps) * hidden, {"fc": hidden})
        self.hidden_norm = source.norm("hidden_norm", hidden, eps)
        self.layers = [
            Layer(shape.layer, first + layer, source.under(f"layers.{layer}."))
            for layer in range(shape.num_layers)
        ]
        self.input_norms = [
            source.norm(f"layers.{layer}.input_layernorm", hidden, eps)
            for layer in range(shape.num_layers)
        ]
        self.norm = source.norm("norm", hidden, eps)
        for layer in range(shape.num_layers):
            _require_head_norms(source.under(f"layers.{layer}.self_attn."), shape)
        self.embed_tokens = source.optional("embed_tokens", shape.vocab_size, hidden)
        """Its own embedding; None: the target's is used."""
        self.targets_D = _targets(shape, source)
        own = self.targets_D is not None or weights.has("lm_head.weight")
        head = {"lm_head": shape.draft_vocab_size}
        self.lm_head = source.product(hidden, head) if own else None
        """Its own output matrix; None: the target's is used."""

    @property
    def specs(self) -> tuple[AttentionSpec, ...]:
        """Of its layers, for a backend."""
        return tuple(layer.spec for layer in self.layers)

    def take_in(self, taps: tuple[Tensor, ...], positions_N: Tensor, store: Attend) -> None:
        """Write the rows of committed positions, from what the target's layers gave there."""
        fused_NE = self.fc(torch.cat(taps, dim=-1).to(self.source.dtype))
        context_NE = self.hidden_norm(fused_NE)
        nobody_NHD = context_NE.new_zeros(
            len(context_NE), self.shape.layer.heads, self.shape.layer.head_dim
        )
        rotation = self.layers[0].rotation(positions_N)
        for layer in self.layers:
            inputs = HeadsInput(nobody_NHD, *layer.keys_values(context_NE, rotation))
            store(layer.number, layer.spec, inputs)

    def forward(
        self, anchors_R: Tensor, positions_T: Tensor, attend: Attend, context: DraftContext
    ) -> Tensor:
        """[R, J, E]: the normed rows of a block after each of these tokens."""
        shape, rotation = self.shape, self.layers[0].rotation(positions_T)
        tokens_RJ = anchors_R.new_full((len(anchors_R), shape.slots), shape.mask_token)
        tokens_RJ[:, 0] = anchors_R
        x_TE = self._embed(tokens_RJ.flatten(), context)
        for layer, norm in zip(self.layers, self.input_norms, strict=True):
            x_TE = layer.forward(norm(x_TE), x_TE, rotation, attend)
        return self.norm(x_TE).view(-1, shape.slots, shape.layer.hidden)

    def logits(self, rows_NE: Tensor, context: DraftContext) -> Tensor:
        """[N, D] over the ids of `targets`."""
        own, shape = self.lm_head, self.shape
        logits_ND = context.decoder.logits(rows_NE) if own is None else own(rows_NE)
        if shape.logit_scale != 1.0:
            logits_ND = logits_ND * shape.logit_scale
        if shape.softcap is not None:
            logits_ND = torch.tanh(logits_ND / shape.softcap) * shape.softcap
        return logits_ND

    def targets(self, places: Tensor) -> Tensor:
        """The target's token ids of entries of `logits`."""
        return places if self.targets_D is None else self.targets_D[places]

    def spread(self, logits_ND: Tensor) -> Tensor:
        """`logits` over the target's vocabulary [N, V]: -inf where the head has no entry."""
        if self.targets_D is None:
            return logits_ND
        spread_NV = logits_ND.new_full((len(logits_ND), self.shape.vocab_size), -torch.inf)
        spread_NV[:, self.targets_D] = logits_ND
        return spread_NV

    def _embed(self, tokens_T: Tensor, context: DraftContext) -> Tensor:
        own = self.embed_tokens
        x_TE = context.decoder.embed(tokens_T) if own is None else F.embedding(tokens_T, own)
        scale = self.shape.embedding_scale
        return (x_TE if scale == 1.0 else x_TE * scale).to(self.source.dtype)


def _require_head_norms(source: Taker, shape: BlockShape) -> None:
    """Note norms that are missing: a layer does without, these heads do not."""
    for name in ("q_norm", "k_norm"):
        if not source.weights.has(f"{source.prefix}{name}.weight"):
            source.take(name, shape.layer.head_dim)


def _targets(shape: BlockShape, source: Taker) -> Tensor | None:
    """The target's id of each of the head's own, from offsets `d2t`; None: they are the same."""
    weights, size = source.weights, shape.draft_vocab_size
    if weights.has("t2d"):  # which of the target's ids the head has: `d2t` says so too
        weights.leave("t2d")
    if size == shape.vocab_size and not weights.has("d2t"):
        return None
    offsets_D = weights.take("d2t", (size,), torch.int64, source.device)
    return torch.arange(size, device=source.device) + offsets_D
