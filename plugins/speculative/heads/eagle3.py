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
from torch.nn import functional as F

from interlock.core.component import BuildContext
from interlock.core.drafter import DraftContext, DraftRows, FeatureDrafter
from interlock.core.model import Attend
from interlock.plugins.speculative.heads.directory import open_head
from interlock.plugins.speculative.heads.eagle import drafter_of, embedded
from interlock.plugins.speculative.heads.eagle3_files import Eagle3Fields, read_eagle3
from interlock.plugins.speculative.heads.layer import Layer, Taker, rms_norm
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
        self.fc = source.take("fc", shape.hidden, fused)
        self.tap_norms = self._tap_norms(source, fused)
        layer = source.under(stated.prefix(weights.names()))
        self.input_norm = layer.take("input_layernorm", shape.hidden)
        self.hidden_norm = layer.take("hidden_norm", shape.hidden)
        self.layer = Layer(shape, number, layer, width=2 * shape.hidden)
        self.norm = source.take("norm", shape.hidden)
        whole = stated.draft_vocab == stated.vocab_size
        shared = whole and not weights.has("lm_head.weight") and stated.as_wide
        self.lm_head = None if shared else source.take("lm_head", stated.draft_vocab, shape.hidden)
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

    def _tap_norms(self, source: Taker, fused: int) -> list[Tensor]:
        stated = self._stated
        if stated.norm_before_fc:
            return [source.take("input_norm", fused)]
        taps = range(len(stated.taps)) if stated.fc_norm else ()
        return [source.take(f"fc_norm.{tap}", stated.target_hidden) for tap in taps]

    def _ids(
        self, name: str, size: int, dtype: torch.dtype, source: Taker, needed: bool = False
    ) -> Tensor | None:
        if not (needed or source.weights.has(name)):
            return None
        return source.weights.take(name, (size,), dtype, source.device)

    def carried(self, rows: DraftRows) -> Tensor:
        """See PairHead: the fused taps."""
        stated, eps = self._stated, self._stated.shape.norm_eps
        taps = [tap_NE.to(self.fc.dtype) for tap_NE in rows.taps]
        if stated.fc_norm and not stated.norm_before_fc:
            taps = [rms_norm(t, w, eps) for t, w in zip(taps, self.tap_norms, strict=True)]
        fused_NI = torch.cat(taps, dim=-1)
        if stated.norm_before_fc:
            fused_NI = rms_norm(fused_NI, self.tap_norms[0], eps)
        return F.linear(fused_NI, self.fc)

    def forward(
        self,
        carried_NE: Tensor,
        next_tokens_N: Tensor,
        positions_N: Tensor,
        attend: Attend,
        context: DraftContext,
    ) -> Tensor:
        """See PairHead: the layer's output, normed if heads of this kind feed that back."""
        eps = self._stated.shape.norm_eps
        embedded_NE = embedded(self.embed_tokens, next_tokens_N, context).to(self.fc.dtype)
        normed_NE = rms_norm(carried_NE, self.hidden_norm, eps)
        pair_NI = torch.cat([rms_norm(embedded_NE, self.input_norm, eps), normed_NE], dim=-1)
        residual_NE = normed_NE if self._stated.norm_before_residual else carried_NE
        out_NE = self.layer.forward(pair_NI, residual_NE, positions_N, attend)
        return rms_norm(out_NE, self.norm, eps) if self._stated.norm_output else out_NE

    def logits(self, handed_RE: Tensor, context: DraftContext) -> Tensor:
        """See PairHead: over the tokens that the head knows."""
        if not self._stated.norm_output:
            handed_RE = rms_norm(handed_RE, self.norm, self._stated.shape.norm_eps)
        if self.lm_head is None:
            return context.decoder.logits(handed_RE)
        return F.linear(handed_RE, self.lm_head)

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
    assert context.dtype is not None
    assert context.device is not None
    stated = read_eagle3(files.json("config.json") or {}, model, files.where("config.json"))
    source = Taker(files.weights(), context.dtype, context.device)
    return drafter_of(config, Eagle3Head(stated, model.num_layers, source), stated.draft_vocab)
