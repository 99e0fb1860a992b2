"""A small language model of the target's vocabulary drafts a chain (arXiv 2211.17192, 2302.01318).

Its layers are numbered after the target's, so its rows lie in the target's pages: the row of the
token at position p is entry p and depends on no later token, as in the target. A step takes the
committed tokens and the anchor after them in in one pass, whose last row gives the first candidate;
each further candidate is a pass of one row. Rows from the anchor's on are written again by the next
step, with the tokens that were committed.

Vocabularies may differ in their padding: candidates come from the ids that both models have, by the
draft model's law over those alone. It reads an id that it lacks as its own last one.

Legend: T tokens of a pass, R requests in it, E hidden size of the draft model, D ids of both
models, V vocabulary of the target.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor
from torch.nn import functional as F

from interlock.core.batch import NO_DRAFT, Draft
from interlock.core.checkpoint import describe_model, load_decoder
from interlock.core.component import BuildContext
from interlock.core.drafter import DraftContext, DraftRows, FeatureDrafter
from interlock.core.errors import CheckpointError
from interlock.core.model import Attend, AttentionInput, AttentionSpec, Decoder, ModelDescription
from interlock.core.parallel import Placement
from interlock.plugins.speculative.heads.block_options import DraftModelConfig
from interlock.plugins.speculative.heads.chain import Candidates, as_drafts, certainty
from interlock.plugins.speculative.heads.directory import open_head
from interlock.plugins.speculative.heads.shared_vocabulary import disagreement


class DraftModel(FeatureDrafter):
    """Drafts up to `num_drafts` tokens a request with a decoder of its own."""

    def __init__(
        self, decoder: Decoder, target: ModelDescription, num_drafts: int, sampled: bool = False
    ) -> None:
        described = decoder.description
        self.decoder, self.num_drafts, self.sampled = decoder, num_drafts, sampled
        self.max_positions = described.max_positions
        self.attention = described.attention
        self._first_layer, self._vocab_size = target.num_layers, target.vocab_size

    def entries_ahead(self, limit: int) -> int:
        """The anchor's row, and those of all candidates but the last."""
        return limit

    @torch.no_grad()
    def propose(self, rows: DraftRows, context: DraftContext) -> list[Draft]:
        """One pass over committed tokens and anchors, then one of a row a request for each draft.

        Requests with the longest chains come first, so that those not done lead each pass.
        """
        wanted = _Wanted.of(rows, self.num_drafts)
        drafts = [NO_DRAFT] * len(rows.limits)
        if not wanted.requests:
            return drafts
        attend, positions_T = context.attend(wanted.requests, wanted.lengths, wanted.starts)
        both = torch.cat([rows.tokens_N, rows.next_tokens_N])
        tokens_T = both[torch.tensor(wanted.places, device=both.device)]
        known_T = tokens_T.clamp(max=self.decoder.description.vocab_size - 1)
        features_TE = self.decoder.forward(known_T, positions_T, self._shifted(attend))
        context.caught_up()
        if wanted.limits[0] > 0:
            for request, draft in zip(
                wanted.requests, self._chains(features_TE, wanted, context), strict=False
            ):
                drafts[request] = draft
        return drafts

    def _chains(self, features_TE: Tensor, wanted: "_Wanted", context: DraftContext) -> list[Draft]:
        """A chain for each request that wants one."""
        limits = [limit for limit in wanted.limits if limit]
        last = torch.tensor(wanted.lengths).cumsum(0)[: len(limits)] - 1
        features_RE = features_TE[last.to(features_TE.device)]
        made = [self._next(features_RE, wanted, 1, context)]
        for depth in range(1, limits[0]):
            active = sum(limit > depth for limit in limits)
            attend, positions_R = context.attend(
                wanted.requests[:active],
                [1] * active,
                [end + depth for end in wanted.anchors[:active]],
            )
            tokens_R = made[-1].tokens_R[:active]
            features_RE = self.decoder.forward(tokens_R, positions_R, self._shifted(attend))
            made.append(self._next(features_RE, wanted, depth + 1, context))
        return as_drafts(made, limits)

    def _next(
        self, features_RE: Tensor, wanted: "_Wanted", depth: int, context: DraftContext
    ) -> Candidates:
        """The candidates `depth` tokens after the anchors of the requests of these rows."""
        logits_RD = self.decoder.logits(features_RE)[:, : self._vocab_size]
        if not self.sampled:
            return Candidates(logits_RD.argmax(-1), certainty(logits_RD))
        lacking = self._vocab_size - logits_RD.shape[1]
        active = len(features_RE)
        drawn = context.draw(
            F.pad(logits_RD, (0, lacking), value=-torch.inf),
            wanted.requests[:active],
            [anchor + depth for anchor in wanted.anchors[:active]],
        )
        return Candidates(drawn.tokens_R, certainty(logits_RD), drawn.laws_RV)

    def _shifted(self, attend: Attend) -> Attend:
        """The same for a decoder that numbers its layers from 0."""

        def shifted(layer: int, spec: AttentionSpec, inputs: AttentionInput) -> Tensor:
            return attend(self._first_layer + layer, spec, inputs)

        return shifted


@dataclass(frozen=True)
class _Wanted:
    """The requests that bring rows, those with the largest limits first.

    Request i runs lengths[i] tokens from entry starts[i] on; where limits[i] > 0, the last of them
    is its anchor, at position anchors[i]. `places` are the tokens' in cat[tokens, next tokens].
    """

    requests: Sequence[int]
    limits: Sequence[int]
    lengths: Sequence[int]
    starts: Sequence[int]
    anchors: Sequence[int]
    places: Sequence[int]

    @staticmethod
    def of(rows: DraftRows, num_drafts: int) -> "_Wanted":
        spans = list(pairwise(rows.row_offsets))
        limits = [min(limit, num_drafts) for limit in rows.limits]
        present = [r for r, (first, end) in enumerate(spans) if first < end]
        present.sort(key=lambda r: -limits[r])
        following = len(rows.tokens_N)
        places: list[int] = []
        for r in present:
            first, end = spans[r]
            places += [*range(first, end), *([following + end - 1] if limits[r] > 0 else [])]
        committed = {r: spans[r][1] - spans[r][0] for r in present}
        return _Wanted(
            requests=present,
            limits=[limits[r] for r in present],
            lengths=[committed[r] + (limits[r] > 0) for r in present],
            starts=[rows.starts[r] for r in present],
            anchors=[rows.starts[r] + committed[r] for r in present],
            places=places,
        )


def build(config: DraftModelConfig, context: BuildContext) -> DraftModel:
    """The drafter with the model in `config.path`, in the engine's dtype and numerics.

    Raises CheckpointError for what cannot be loaded, or has another vocabulary than the target;
    ConfigError when there is no directory to look in.
    """
    files, target = open_head(config, context, "draft_model"), context.model
    assert context.dtype is not None
    assert context.device is not None
    described = describe_model(files, context.families)
    if problem := disagreement(described, target):
        raise CheckpointError(f"spec.path={files.path}: {problem}")
    placement = Placement(context.dtype, context.device, numerics=context.numerics)
    decoder = load_decoder(described, context.families, placement)
    return DraftModel(decoder, target, config.num_drafts, config.proposal == "sampled")
