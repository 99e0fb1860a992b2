"""Multi-token-prediction layers: decoder layers of the target's own kind over (token, hidden).

    x_p = eh_proj(cat[enorm(embedding of the token at p + 1), hnorm(h_p)])
    h'_p = decoder layer(x_p);  logits of the token at p + 2 = head(shared_head.norm(h'_p))

DeepSeek-V3, arXiv 2412.19437, section 2.2. h_p is what the target's last layer leaves, before the
final norm (or the final-norm feature, for layers that were trained on it). For further drafts a
layer reads its own output before shared_head.norm; with n layers, draft k is layer k % n's.

Deviation for n > 1: over committed rows every layer reads h_p and the token at p + 1. In training
layer k reads layer k - 1's output there and the token at p + 1 + k, which would have to outlive a
step. Layers of their own see fewer drafted rows: those that they made themselves.

Legend: N rows, R requests in a pass, E hidden size, V vocabulary.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from interlock.core.checkpoint import load_decoder
from interlock.core.component import BuildContext
from interlock.core.drafter import DraftContext, DraftRows
from interlock.core.model import Attend, AttentionInput, AttentionSpec, ModelDescription, Taps
from interlock.core.parallel import Placement
from interlock.core.weights import WeightSource
from interlock.plugins.speculative.heads.layer import Taker
from interlock.plugins.speculative.heads.mtp_weights import LayerWeights
from interlock.plugins.speculative.heads.pairs import PairHead

EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"


class _StoredError(Exception):
    """Ends a decoder's pass: its rows are stored, and nobody reads what would follow."""


class MtpLayer:
    """One layer with what stands around it. `number` is the layer that its rows are stored under.

    Takes every tensor of `weights` once; mistakes are one CheckpointError. `embedding_VE` and
    `head` are of its own tables; None: the target's, which they usually repeat.
    """

    def __init__(
        self,
        described: ModelDescription,
        number: int,
        weights: LayerWeights,
        context: BuildContext,
        tables: WeightSource | None,
    ) -> None:
        source, hidden = Taker(weights, context), described.hidden_size
        eps = float(described.config.get("rms_norm_eps", 1e-6))

        def own(name: str, *same: str) -> Tensor | None:
            if not weights.has(f"{name}.weight"):
                return None
            table_VE = source.take(name, context.model.vocab_size, hidden)
            return None if _repeats(table_VE, tables, same) else table_VE

        self.number, self.dtype = number, source.dtype
        self.enorm, self.hnorm = (source.norm(name, hidden, eps) for name in ("enorm", "hnorm"))
        self.eh_proj = source.product(2 * hidden, {"eh_proj": hidden})
        self.norm = source.norm("shared_head.norm", hidden, eps)
        self.embedding_VE = own("embed_tokens", EMBEDDING)
        head_VE = own("shared_head.head", HEAD, EMBEDDING)
        self.head = None if head_VE is None else source.operations.product(head_VE)
        placement = Placement(source.dtype, source.device, numerics=context.numerics)
        self.decoder = load_decoder(described, context.families, placement, weights)
        self.spec: AttentionSpec = described.attention[0]

    def forward(
        self,
        hidden_NE: Tensor,
        tokens_N: Tensor,
        positions_N: Tensor,
        attend: Attend,
        embedded_NE: Tensor,
    ) -> Tensor:
        """[N, E]: the layer's output, before its norm; [0, E] if `attend` only stores rows."""
        pair = self.enorm(embedded_NE.to(self.dtype)), self.hnorm(hidden_NE.to(self.dtype))
        x_NE = self.eh_proj(torch.cat(pair, dim=-1))
        taps = Taps((0,))
        try:
            self.decoder.forward(tokens_N, positions_N, self._own(attend), taps, x_NE)
        except _StoredError:
            return x_NE[:0]
        (output_NE,) = taps.outputs()
        return output_NE

    def _own(self, attend: Attend) -> Attend:
        """The same attention, for a decoder that calls its layer 0, and ends where its rows are
        stored if that is all."""

        def own(_layer: int, spec: AttentionSpec, inputs: AttentionInput) -> Tensor:
            attended_NHV = attend(self.number, spec, inputs)
            if not len(attended_NHV):
                raise _StoredError
            return attended_NHV

        return own


class MtpHead(PairHead):
    """The layers of one target. `taps` are what `h` is read from: none for the final-norm feature.

    `zero_first` leaves the embedding of the first row of a request out, as vLLM does.
    """

    def __init__(
        self, layers: Sequence[MtpLayer], taps: tuple[int, ...], zero_first: bool, positions: int
    ) -> None:
        self.layers, self.taps, self.zero_first = list(layers), taps, zero_first
        self.specs = tuple(layer.spec for layer in layers)
        self.max_positions = positions

    def carried(self, rows: DraftRows) -> Tensor:
        """See PairHead: h."""
        return rows.taps[0] if self.taps else rows.features_NE

    def forward(
        self,
        carried_NE: Tensor,
        next_tokens_N: Tensor,
        positions_N: Tensor,
        attend: Attend,
        context: DraftContext,
        wanted_R: Tensor | None = None,
    ) -> Tensor:
        """See PairHead. All layers take the rows in; the first one's output is handed on."""
        handed = [
            self.apply(layer, carried_NE, next_tokens_N, positions_N, attend, context)
            for layer in self.layers
        ]
        return handed[0] if wanted_R is None else handed[0][wanted_R]

    def apply(
        self,
        layer: MtpLayer,
        carried_NE: Tensor,
        next_tokens_N: Tensor,
        positions_N: Tensor,
        attend: Attend,
        context: DraftContext,
    ) -> Tensor:
        """[N, E]: what one layer hands on."""
        own = layer.embedding_VE
        embedded_NE = (
            context.decoder.embed(next_tokens_N) if own is None else F.embedding(next_tokens_N, own)
        )
        if self.zero_first:
            embedded_NE = embedded_NE.masked_fill((positions_N == 0)[:, None], 0.0)
        return layer.forward(carried_NE, next_tokens_N, positions_N, attend, embedded_NE)

    def logits(self, handed_RE: Tensor, context: DraftContext) -> Tensor:
        """See PairHead: of the first layer's output."""
        return self.logits_of(self.layers[0], handed_RE, context)

    def logits_of(self, layer: MtpLayer, handed_RE: Tensor, context: DraftContext) -> Tensor:
        """[R, V] after a layer's own norm, by its own head or the target's."""
        normed_RE = layer.norm(handed_RE)
        return context.decoder.logits(normed_RE) if layer.head is None else layer.head(normed_RE)


def _repeats(table_VE: Tensor, tables: WeightSource | None, names: Sequence[str]) -> bool:
    """Whether a stored table is the target's, which is the first of `names` that is stored."""
    name = next((name for name in names if tables is not None and tables.has(name)), None)
    if tables is None or name is None or tables.shape(name) != tuple(table_VE.shape):
        return False
    same_VE = tables.read(name, tuple(table_VE.shape), table_VE.dtype, table_VE.device)
    return torch.equal(table_VE, same_VE)
