"""Heads over shifted pairs: row p holds what is known of position p and the token at p + 1.

EAGLE and MTP heads are of this kind: rows sit at rotary position p and predict the token at p + 2.
For committed rows the first half comes from the target; a drafted row takes what the row of its
parent handed on.

Legend: N rows over all requests, R requests in a pass, E hidden size, V vocabulary.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from interlock.core.drafter import DraftContext, DraftRows
from interlock.core.model import Attend, AttentionSpec


class PairHead(ABC):
    """A network over such rows. Its layers are numbered after the target's."""

    specs: tuple[AttentionSpec, ...]
    max_positions: int
    taps: tuple[int, ...] = ()
    """Layers of the target that `carried` reads."""

    @abstractmethod
    def carried(self, rows: DraftRows) -> Tensor:
        """[N, E]: the first halves of committed rows."""

    @abstractmethod
    def forward(
        self,
        carried_NE: Tensor,
        next_tokens_N: Tensor,
        positions_N: Tensor,
        attend: Attend,
        context: DraftContext,
        wanted_R: Tensor | None = None,
    ) -> Tensor:
        """[N, E]: what each row hands on, as the first half of rows that follow it.

        Given `wanted_R`, only those rows' [R, E]: of the others nothing but cache rows is needed.
        """

    @abstractmethod
    def logits(self, handed_RE: Tensor, context: DraftContext) -> Tensor:
        """[R, V or fewer] of the token that follows each row's, over the tokens of `targets`."""

    def targets(self, places: Tensor) -> Tensor:
        """The target's token ids of entries of `logits`."""
        return places

    def places(self, tokens: Tensor) -> Tensor:
        """The entries of `logits` that are for these tokens, which it has."""
        return tokens

    def spread(self, logits_RD: Tensor) -> Tensor:
        """`logits` over the target's vocabulary [R, V]: -inf where the head has no entry."""
        return logits_RD


@dataclass(frozen=True)
class CaughtUp:
    """The requests that want candidates, after the pass over all committed rows.

    `requests[i]` (a place in DraftRows) wants at most limits[i] candidates after its last row,
    which is entry ends[i] - 1 and handed on handed_RE[i]. Most wanted first.
    """

    requests: list[int]
    limits: list[int]
    ends: list[int]
    handed_RE: Tensor


def catch_up(
    head: PairHead, rows: DraftRows, context: DraftContext, num_drafts: int
) -> CaughtUp | None:
    """Take all committed rows in, in one pass; None where nobody wants candidates."""
    lengths = [end - first for first, end in pairwise(rows.row_offsets)]
    present = [request for request, length in enumerate(lengths) if length]
    if not present:
        return None
    starts = [rows.starts[r] for r in present]
    limits = [min(limit, num_drafts) for limit in rows.limits]
    order = sorted((r for r in present if limits[r] > 0), key=lambda r: -limits[r])
    last = [rows.row_offsets[r + 1] - 1 for r in order]
    attend, positions_N = context.attend(
        present, [lengths[r] for r in present], starts, store_only=not order
    )
    last_R = torch.tensor(last, dtype=torch.long, device=positions_N.device)
    carried_NE, tokens_N = head.carried(rows), rows.next_tokens_N
    handed_RE = head.forward(carried_NE, tokens_N, positions_N, attend, context, last_R)
    context.caught_up()
    if not order:
        return None
    return CaughtUp(
        requests=order,
        limits=[limits[r] for r in order],
        ends=[rows.starts[r] + lengths[r] for r in order],
        handed_RE=handed_RE,
    )
