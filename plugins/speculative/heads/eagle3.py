"""EAGLE-3 heads: one layer over fused outputs of several target layers (arXiv 2503.01840).

    g_p = fc(cat[taps of position p]);  a drafted row has what its parent's row handed on instead
    x_p = cat[input_layernorm(embedding of the token at p + 1), hidden_norm(g_p)]
    o_p = the layer's output, residual from g_p; logits = lm_head(norm(o_p)), of the token at p + 2

A row hands o_p on. Variants that configs state: `norm_before_residual` (residual from
hidden_norm(g_p)), and EAGLE 3.1's `norm_before_fc` (one norm over all taps), `fc_norm` (one norm a
tap) and `norm_output` (norm(o_p) is handed on). The head may know fewer tokens than its target, and
be of another width if it has an embedding of its own.

Legend: N rows, R requests in a pass, E hidden size of the head, D tokens that the head knows.
"""

import torch
from torch import Tensor

from interlock.core.component import BuildContext
from interlock.core.drafter import DraftContext, DraftRows, FeatureDrafter
from interlock.core.model import Attend
from interlock.core.operations import Product
from interlock.plugins.speculative.heads.directory import open_head
from interlock.plugins.speculative.heads.eagle import drafter_of, embedded
from interlock.plugins.speculative.heads.eagle3_files import Eagle3Fields, read_eagle3
from interlock.plugins.speculative.heads.layer import Layer, Taker
from interlock.plugins.speculative.heads.options import Eagle3Config
from interlock.plugins.speculative.heads.pairs import PairHead
from interlock.plugins.speculative.heads.vocabulary import DraftVocabulary


class Eagle3Head(PairHead):
    """Takes every tensor of `source` once and finishes it: missing, misshapen and unexpected
    tensors are one CheckpointError. `number` is the layer that its cache rows are stored under."""

    def __init__(self, stated: Eagle3Fields, number: int, source: Taker) -> None:
        shape, weights = stated.shape, source.weights
        self.taps, self.max_positions, self._stated = stated.taps, stated.max_positions, stated
        fused = len(stated.taps) * stated.target_hidden
        self.dtype, self.fc = source.dtype, source.product(fused, {"fc": shape.hidden})
        self.tap_norms = self._tap_norms(source, fused)
        layer, eps = source.under(stated.prefix(weights.names())), shape.norm_eps
        self.input_norm = layer.norm("input_layernorm", shape.hidden, eps)
        self.hidden_norm = layer.norm("hidden_norm", shape.hidden, eps)
        self.layer = Layer(shape, number, layer, width=2 * shape.hidden)
        self.norm = source.norm("norm", shape.hidden, eps)
        whole = stated.draft_vocab == stated.vocab_size
        shared = whole and not weights.has("lm_head.weight") and stated.as_wide
        head = {"lm_head": stated.draft_vocab}
        self.lm_head = None if shared else source.product(shape.hidden, head)
        """The head's own logits; None: the target's."""
        shared = stated.as_wide and not weights.has("embed_tokens.weight")
        sizes = stated.vocab_size, shape.hidden
        self.embed_tokens = None if shared else source.take("embed_tokens", *sizes)
        """The head's own embedding; None: the target's."""
        d2t_D = self._ids("d2t", stated.draft_vocab, torch.int64, source, needed=not whole)
        known_V = self._ids("t2d", stated.vocab_size, torch.bool, source)
        weights.finish()
        self.vocabulary = _vocabulary(stated, d2t_D, known_V)
        self.specs = (self.layer.spec,)

    def _tap_norms(self, source: Taker, fused: int) -> list[Product]:
        stated, eps = self._stated, self._stated.shape.norm_eps
        if stated.norm_before_fc:
            return [source.norm("input_norm", fused, eps)]
        taps = range(len(stated.taps)) if stated.fc_norm else ()
        return [source.norm(f"fc_norm.{tap}", stated.target_hidden, eps) for tap in taps]

    def _ids(
        self, name: str, size: int, dtype: torch.dtype, source: Taker, needed: bool = False
    ) -> Tensor | None:
        if not (needed or source.weights.has(name)):
            return None
        return source.weights.take(name, (size,), dtype, source.device)

    def carried(self, rows: DraftRows) -> Tensor:
        """See PairHead: the fused taps."""
        stated = self._stated
        taps = [tap_NE.to(self.dtype) for tap_NE in rows.taps]
        if stated.fc_norm and not stated.norm_before_fc:
            taps = [norm(tap_NE) for norm, tap_NE in zip(self.tap_norms, taps, strict=True)]
        fused_NI = torch.cat(taps, dim=-1)
        return self.fc(self.tap_norms[0](fused_NI) if stated.norm_before_fc else fused_NI)

    def forward(
        self,
        carried_NE: Tensor,
        next_tokens_N: Tensor,
        positions_N: Tensor,
        attend: Attend,
        context: DraftContext,
        wanted_R: Tensor | None = None,
    ) -> Tensor:
        """See PairHead: the layer's output, normed if heads of this kind feed that back."""
        embedded_NE = embedded(self.embed_tokens, next_tokens_N, context).to(self.dtype)
        normed_NE = self.hidden_norm(carried_NE)
        pair_NI = torch.cat([self.input_norm(embedded_NE), normed_NE], dim=-1)
        residual_NE = normed_NE if self._stated.norm_before_residual else carried_NE
        rotation = self.layer.rotation(positions_N)
        out_NE = self.layer.forward(pair_NI, residual_NE, rotation, attend, wanted_R)
        return self.norm(out_NE) if self._stated.norm_output else out_NE

    def logits(self, handed_RE: Tensor, context: DraftContext) -> Tensor:
        """See PairHead: over the tokens that the head knows."""
        if not self._stated.norm_output:
            handed_RE = self.norm(handed_RE)
        return (
            context.decoder.logits(handed_RE) if self.lm_head is None else self.lm_head(handed_RE)
        )

    def targets(self, places: Tensor) -> Tensor:
        """See PairHead."""
        return places if self.vocabulary is None else self.vocabulary.targets(places)

    def places(self, tokens: Tensor) -> Tensor:
        """See PairHead."""
        return tokens if self.vocabulary is None else self.vocabulary.places(tokens)

    def spread(self, logits_RD: Tensor) -> Tensor:
        """See PairHead."""
        return logits_RD if self.vocabulary is None else self.vocabulary.spread(logits_RD)


def _vocabulary(
    stated: Eagle3Fields, d2t_D: Tensor | None, known_V: Tensor | None
) -> DraftVocabulary | None:
    """None where every token has the entry of its own id."""
    if d2t_D is None or (stated.draft_vocab == stated.vocab_size and not d2t_D.any()):
        return None
    return DraftVocabulary(d2t_D, stated.vocab_size, stated.source, known_V)


def build(config: Eagle3Config, context: BuildContext) -> FeatureDrafter:
    """The drafter with the weights of `config.path`, in the engine's dtype.

    Raises CheckpointError that names fields or tensors when the head is not what its config says
    or was trained for another target; ConfigError when there is no directory to look in.
    """
    files, model = open_head(config, context, "eagle3"), context.model
    stated = read_eagle3(files.json("config.json") or {}, model, files.where("config.json"))
    source = Taker(files.weights(), context)
    return drafter_of(config, Eagle3Head(stated, model.num_layers, source), stated.draft_vocab)
