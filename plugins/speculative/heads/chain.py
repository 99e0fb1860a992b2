"""Chains: each candidate follows the one before, drafted one pass at a time.

Greedy: the head's most likely token. Sampled: a token drawn by the request's own temperature and
filters, with its law. `confidence` is the law's largest probability (at temperature 1) either way:
it is known before the candidate is drawn.

Legend: R requests in a pass, D tokens that the head knows, V vocabulary, K depths.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from interlock.core.batch import NO_DRAFT, Draft
from interlock.core.drafter import DraftContext, DraftRows, FeatureDrafter
from interlock.plugins.speculative.heads.conventions import pair_position
from interlock.plugins.speculative.heads.pairs import CaughtUp, PairHead, catch_up


class ChainDrafter(FeatureDrafter):
    """Drafts up to `num_drafts` tokens a request by feeding the head its own rows.

    Its layers are numbered after the target's last one, so its cache rows share the target's pages;
    a row depends on the token after it (`lookback_tokens` 1).
    """

    lookback_tokens = 1

    def __init__(self, head: PairHead, num_drafts: int, sampled: bool = False) -> None:
        self.head = head
        self.num_drafts = num_drafts
        self.sampled = sampled
        self.max_positions = head.max_positions
        self.attention = head.specs
        self.taps = head.taps

    @torch.no_grad()
    def propose(self, rows: DraftRows, context: DraftContext) -> list[Draft]:
        """One pass over all committed rows, then a pass of one row per request for each draft.

        Speculative rows become the entries after a request's last committed row; the next call
        writes true ones over them.
        """
        drafts = [NO_DRAFT] * len(rows.limits)
        at = catch_up(self.head, rows, context, self.num_drafts)
        if at is not None:
            for request, draft in zip(at.requests, self._chains(at, context), strict=True):
                drafts[request] = draft
        return drafts

    def _chains(self, at: CaughtUp, context: DraftContext) -> list[Draft]:
        """Requests with the longest chains come first, so that those not done lead each pass.

        Greedy chains are read from the device only when all are whole.
        """
        handed_RE = at.handed_RE
        made = [self._next(handed_RE, at, 1, context)]
        for depth in range(1, at.limits[0]):
            active = sum(limit > depth for limit in at.limits)
            tokens_R = made[-1].tokens_R[:active]
            handed_RE = self._pass(handed_RE[:active], tokens_R, at, depth, context)
            made.append(self._next(handed_RE, at, depth + 1, context))
        return as_drafts(made, at.limits)

    def _pass(
        self,
        handed_RE: Tensor,
        tokens_R: Tensor,
        at: CaughtUp,
        depth: int,
        context: DraftContext,
    ) -> Tensor:
        """What the rows of these candidates, the ones at `depth`, hand on."""
        active = len(handed_RE)
        places = [pair_position(end, depth) for end in at.ends[:active]]
        attend, positions_R = context.attend(at.requests[:active], [1] * active, places)
        return self.head.forward(handed_RE, tokens_R, positions_R, attend, context)

    def _logits(self, handed_RE: Tensor, _depth: int, context: DraftContext) -> Tensor:
        """Of the candidates at a depth, from what the rows before them handed on."""
        return self.head.logits(handed_RE, context)

    def _next(
        self, handed_RE: Tensor, at: CaughtUp, depth: int, context: DraftContext
    ) -> "Candidates":
        """The candidates at this depth of the requests that these rows belong to."""
        logits_RD = self._logits(handed_RE, depth, context)
        if not self.sampled:
            return Candidates(self.head.targets(logits_RD.argmax(-1)), certainty(logits_RD))
        active = len(handed_RE)
        drawn = context.draw(
            self.head.spread(logits_RD),
            at.requests[:active],
            [end + depth for end in at.ends[:active]],
        )
        return Candidates(drawn.tokens_R, certainty(logits_RD), drawn.laws_RV)


class Candidates(NamedTuple):
    """One candidate a request: its token, the head's certainty (`certainty`), and its law."""

    tokens_R: Tensor
    certain_R: Tensor
    laws_RV: Tensor | None = None

    def split(self, counts: list[int]) -> "list[Candidates]":
        """The first counts[0] of them, the next counts[1], and so on."""
        laws = self.laws_RV
        parts = [torch.split(each, counts) for each in (self.tokens_R, self.certain_R)]
        split_laws = [None] * len(counts) if laws is None else torch.split(laws, counts)
        return [Candidates(*each) for each in zip(*parts, split_laws, strict=True)]


def certainty(logits_RD: Tensor) -> Tensor:
    """[R]: the largest probability of each row's law, at temperature 1, in fp32 or wider."""
    wide = torch.promote_types(logits_RD.dtype, torch.float32)
    return logits_RD.softmax(-1, wide).amax(-1)


def as_drafts(made: list[Candidates], limits: list[int]) -> list[Draft]:
    """Chains of limits[i] candidates; of depth k there are those of the first requests.

    NaNs, which only a broken head has, are no confidence at all.
    """
    tokens = [depth.tokens_R.tolist() for depth in made]
    certain = [depth.certain_R.nan_to_num(0.0).tolist() for depth in made]
    laws = [depth.laws_RV for depth in made]
    drafts = []
    for place, length in enumerate(limits):
        known = [law[place] for law in laws[:length] if law is not None]
        drafts.append(
            Draft(
                tuple(depth[place] for depth in tokens[:length]),
                laws=torch.stack(known) if known else None,
                confidence=tuple(depth[place] for depth in certain[:length]),
            )
        )
    return drafts
