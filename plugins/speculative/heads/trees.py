"""Draft trees over a pair head, grown a depth at a time, of all requests together.

A pass runs the candidates that get children, and their ancestors again: a row of a tree sees what
is committed and its own ancestors, which must be new tokens of the same pass. Their entries follow
the last committed one and are written over by the next pass.

Legend: R requests, F candidates a request that are run at a depth, C candidates a request of a
depth, N candidates that were run so far, E hidden size, D tokens that the head knows.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from interlock.core.batch import NO_DRAFT, Draft, Ints
from interlock.core.drafter import DraftContext, DraftRows, Drawn, FeatureDrafter
from interlock.plugins.speculative.heads.conventions import pair_position
from interlock.plugins.speculative.heads.pairs import CaughtUp, PairHead, catch_up

Floats = NDArray[np.float64]


class Children(NamedTuple):
    """The candidates of one depth, as many for every request.

    Candidate c of request r is child of parents_RC[r, c], a place among the candidates that were
    run at the depth before (depth 1: always 0, the anchor), and was given the log-probability
    chances_RC[r, c] by the head. run_RF are the places that are run next.
    """

    parents_RC: Ints
    tokens_RC: Ints
    chances_RC: Floats
    run_RF: Ints
    laws: tuple[Tensor, ...] | None = None
    """Of each request the laws [C, V] that its candidates were drawn from."""


class Level(NamedTuple):
    """What is known where children are chosen: logits [R, F, D] of the candidates that were run at
    the depth before, and the summed log-probabilities of the paths to them."""

    depth: int
    logits_RFD: Tensor
    scores_RF: Floats
    at: CaughtUp
    head: PairHead
    context: DraftContext

    def draw(self, logits_MD: Tensor, places: Sequence[int], nth: int) -> Drawn:
        """A token for each row, of the request at its place; see `DraftContext.draw`.

        Children of different parents share their noise: of a round they are never both on the path
        that is accepted.
        """
        requests = [self.at.requests[place] for place in places]
        positions = [self.at.ends[place] + self.depth for place in places]
        return self.context.draw(self.head.spread(logits_MD), requests, positions, nth)


class Growth(ABC):
    """Which candidates a tree has."""

    depth: int
    """Candidates on the longest path."""
    ranked: bool
    """Whether the likeliest candidates come first; else they stand in the order of growth."""

    @abstractmethod
    def run_at(self, depth: int) -> int:
        """How many candidates of this depth are run at most, to give them children."""

    @abstractmethod
    def children(self, level: Level) -> Children:
        """The candidates at `level.depth`."""


class TreeDrafter(FeatureDrafter):
    """Drafts trees of up to `num_drafts` candidates.

    Like a chain's, its cache rows share the target's pages and depend on the token after them. One
    read from the device a depth.
    """

    lookback_tokens = 1

    def __init__(self, head: PairHead, num_drafts: int, growth: Growth) -> None:
        self.head = head
        self.num_drafts = num_drafts
        self.depth = growth.depth
        self.growth = growth
        self.max_positions = head.max_positions
        self.attention = head.specs
        self.taps = head.taps

    def entries_ahead(self, limit: int) -> int:
        """See Drafter: every candidate that is run, of the depths that the limit lets grow."""
        deepest = min(limit, self.growth.depth)
        return sum(self.growth.run_at(depth) for depth in range(1, deepest))

    @torch.no_grad()
    def propose(self, rows: DraftRows, context: DraftContext) -> list[Draft]:
        """One pass over all committed rows, then one for each further depth of the trees."""
        drafts = [NO_DRAFT] * len(rows.limits)
        at = catch_up(self.head, rows, context, self.num_drafts)
        if at is None:
            return drafts
        levels = self._grow(at, context)
        for place, (request, limit) in enumerate(zip(at.requests, at.limits, strict=True)):
            own = [level for level in levels if place < len(level.tokens_RC)]
            drafts[request] = as_tree(own, place, limit, self.growth.ranked)
        return drafts

    def _grow(self, at: CaughtUp, context: DraftContext) -> list[Children]:
        """The candidates by depth. Those of most are wanted of come first, so that a depth is grown
        for the first requests alone."""
        run = _Run(at, context, self.head)
        handed_RFE, scores_RF = at.handed_RE[:, None], np.zeros((len(at.requests), 1))
        levels: list[Children] = []
        for depth in range(1, min(self.growth.depth, at.limits[0]) + 1):
            active = sum(limit >= depth for limit in at.limits)
            if depth > 1:
                handed_RFE, scores_RF = run.step(levels[-1], handed_RFE, scores_RF, active, depth)
            logits_MD = self.head.logits(handed_RFE.flatten(0, 1), context)
            logits_RFD = logits_MD.view(*handed_RFE.shape[:2], -1)
            level = Level(depth, logits_RFD, scores_RF, at, self.head, context)
            levels.append(self.growth.children(level))
        return levels


class _Run:
    """The candidates that were run, and the passes that run more.

    sees_RNN[r, i] are those of request r that candidate i sees: itself and its ancestors.
    """

    def __init__(self, at: CaughtUp, context: DraftContext, head: PairHead) -> None:
        self._at, self._context, self._head = at, context, head
        self._sees_RNN = np.zeros((len(at.requests), 0, 0), dtype=bool)
        self._depths_N = np.zeros(0, dtype=np.int64)
        self._carried_RNE = at.handed_RE[:, None][:, :0]
        self._tokens_RN = torch.zeros(
            len(at.requests), 0, dtype=torch.long, device=at.handed_RE.device
        )
        self._first = 0
        """The first of those that were run last."""

    def step(
        self, made: Children, handed_RFE: Tensor, scores_RF: Floats, active: int, depth: int
    ) -> tuple[Tensor, Floats]:
        """Run what `made` says, of the first `active` requests: what the rows hand on, [R, F, E],
        and their scores. `handed_RFE` and `scores_RF` are those of the depth before."""
        run_RF = made.run_RF[:active]
        parents_RF = np.take_along_axis(made.parents_RC[:active], run_RF, 1)
        chances_RF = np.take_along_axis(made.chances_RC[:active], run_RF, 1)
        scores_RF = np.take_along_axis(scores_RF[:active], parents_RF, 1) + chances_RF
        device = handed_RFE.device
        places_R1 = torch.arange(active, device=device)[:, None]
        carried_RFE = handed_RFE[places_R1, torch.from_numpy(parents_RF).to(device)]
        tokens_RF = torch.from_numpy(np.take_along_axis(made.tokens_RC[:active], run_RF, 1))
        self._add(parents_RF, carried_RFE, tokens_RF.to(device), depth - 1)
        return self._pass(active, run_RF.shape[1]), scores_RF

    def _add(self, parents_RF: Ints, carried_RFE: Tensor, tokens_RF: Tensor, depth: int) -> None:
        requests, more = parents_RF.shape
        before = self._sees_RNN[:requests]
        known = before.shape[1]
        sees = np.zeros((requests, known + more, known + more), dtype=bool)
        sees[:, :known, :known] = before
        if known:
            parents_RF1 = (self._first + parents_RF)[:, :, None]
            sees[:, known:, :known] = np.take_along_axis(before, parents_RF1, 1)
        sees[:, known:, known:] = np.eye(more, dtype=bool)
        self._sees_RNN, self._first = sees, known
        self._depths_N = np.append(self._depths_N, np.full(more, depth))
        self._carried_RNE = torch.cat([self._carried_RNE[:requests], carried_RFE], dim=1)
        self._tokens_RN = torch.cat([self._tokens_RN[:requests], tokens_RF], dim=1)

    def _pass(self, active: int, newest: int) -> Tensor:
        """Rows of the newest candidates and their ancestors; what the newest hand on."""
        needed_RN = np.any(self._sees_RNN[:, self._first :], axis=1)
        row, node = np.nonzero(needed_RN)
        device = self._carried_RNE.device
        masks = {
            r: torch.from_numpy(self._sees_RNN[r][np.ix_(needed, needed)]).to(device)
            for r, needed in enumerate(list(needed_RN))
        }
        ends = self._at.ends[:active]
        depths = self._depths_N[node].tolist()
        attend, positions_M = self._context.attend(
            self._at.requests[:active],
            needed_RN.sum(1).tolist(),
            ends,
            [pair_position(ends[r], depth) for r, depth in zip(row, depths, strict=True)],
            masks,
        )
        index = torch.from_numpy(row).to(device), torch.from_numpy(node).to(device)
        handed_ME = self._head.forward(
            self._carried_RNE[index], self._tokens_RN[index], positions_M, attend, self._context
        )
        asked = torch.from_numpy(np.flatnonzero(node >= self._first)).to(device)
        return handed_ME[asked].view(active, newest, -1)


def as_tree(levels: Sequence[Children], place: int, limit: int, ranked: bool) -> Draft:
    """At most `limit` candidates of one request as a draft.

    Ranked ones are sorted by the probability of their path, of equal ones the shallow ones and then
    the first ones first, so that a candidate's parent comes before it. What has no probability (of
    a broken head, or beyond the tokens it knows) is left out.
    """
    parents: list[int] = []
    tokens: list[int] = []
    chances: list[float] = []
    scores: list[float] = []
    run = [-1]
    for level in levels:
        first = len(tokens)
        of_level = [run[parent] for parent in level.parents_RC[place].tolist()]
        parents += of_level
        tokens += level.tokens_RC[place].tolist()
        chances += level.chances_RC[place].tolist()
        scores += [
            chance + (scores[parent] if parent >= 0 else 0.0)
            for parent, chance in zip(of_level, level.chances_RC[place].tolist(), strict=True)
        ]
        run = [first + candidate for candidate in level.run_RF[place].tolist()]
    order = np.arange(len(tokens))
    if ranked:
        order = np.argsort(-np.array(scores), kind="stable")
    kept = [node for node in order.tolist() if scores[node] > -np.inf][:limit]
    number = {-1: -1} | {node: n for n, node in enumerate(kept)}
    of_kept = tuple(number[parents[node]] for node in kept)
    laws = [level.laws[place] for level in levels if level.laws is not None]
    return Draft(
        tuple(tokens[node] for node in kept),
        None if of_kept == tuple(range(-1, len(kept) - 1)) else of_kept,
        laws=torch.cat(laws)[kept] if laws else None,
        confidence=tuple(np.exp([chances[node] for node in kept]).tolist()),
    )
