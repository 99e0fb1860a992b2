"""Recursive rejection of drawn siblings: the ratio rule for trees.

SpecInfer (Miao et al., ASPLOS 2024, algorithm 2), EAGLE (Li et al., ICML 2024, appendix A) and
Sequoia (Chen et al., 2024, section 3.2). The siblings after a node are tried in order: c is
accepted with probability min(1, p(c) / q(c)), else max(p - q, 0), normalised, takes the place of p.
q is the law that this very sibling was drawn from, so drawing with and without replacement are one
case. What is left of p after the last one is the law of the last token.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from interlock.core.batch import Draft
from interlock.core.component import BuildContext
from interlock.core.streams import Purpose
from interlock.core.verifier import TargetRows, Verdict
from interlock.plugins.speculative.verifiers.options import RecursiveConfig
from interlock.plugins.speculative.verifiers.rejection import (
    DraftsVerifier,
    Owned,
    draft_chances,
    drawn,
    law_of,
    residual,
)


class Recursive(DraftsVerifier):
    """Walks down each tree, all requests at once: one candidate of each in a round."""

    def judge(self, owned: Sequence[Owned], rows: TargetRows) -> list[Verdict]:
        """See DraftsVerifier. As many rounds as the request that tries most candidates has."""
        chances = draft_chances(owned)
        walks = [_Walk(*one, q) for one, q in zip(owned, chances, strict=True)]
        laws_NV = rows.laws()
        law_RV = laws_NV[[walk.row for walk in walks]].double()
        numbers: dict[int, list[float]] = {}
        while trying := [r for r, walk in enumerate(walks) if walk.left]:
            ps = law_RV[trying, [walks[r].token for r in trying]].tolist()
            for r, p in zip(trying, ps, strict=True):
                walk = walks[r]
                if walk.tried not in numbers:
                    numbers[walk.tried] = rows.uniforms(Purpose.ACCEPT, walk.tried).tolist()
                walk.judge(numbers[walk.tried][walk.row], p)
            _go_on(law_RV, laws_NV, [(r, walks[r]) for r in trying])
        ends = [walk.row for walk in walks]
        tokens = drawn(law_RV, rows.uniforms(Purpose.RESIDUAL)[ends].tolist())
        return [Verdict(tuple(w.path), token) for w, token in zip(walks, tokens, strict=True)]


class _Walk:
    """One request's way down its tree: `left` are the siblings that are still to be tried."""

    def __init__(self, draft: Draft, first: int, chances: Sequence[float]) -> None:
        self.draft, self.path, self.tried = draft, list[int](), 0
        self._first, self._chances = first, chances
        self._children: list[list[int]] = [[] for _ in range(1 + len(draft.tokens))]
        for candidate in range(len(draft.tokens)):
            parent = draft.parents[candidate] if draft.parents else candidate - 1
            self._children[parent + 1].append(candidate)
        self.left = self._children[0]
        self.refused: int | None = None

    @property
    def row(self) -> int:
        """The row of the node where it stands."""
        return self._first + (self.path[-1] + 1 if self.path else 0)

    @property
    def token(self) -> int:
        """The candidate's that is tried next."""
        return self.draft.tokens[self.left[0]]

    def judge(self, number: float, chance: float) -> None:
        """Accept the next sibling, or note that it was refused, by its chance under the target."""
        candidate = self.left[0]
        self.refused = None if number * self._chances[candidate] < chance else candidate
        if self.refused is None:
            self.path.append(candidate)
            self.left, self.tried = self._children[candidate + 1], 0
        else:
            self.left, self.tried = self.left[1:], self.tried + 1


def _go_on(law_RV: Tensor, laws_NV: Tensor, judged: Sequence[tuple[int, _Walk]]) -> None:
    """Replace the laws of requests whose candidate was judged: the new node's, or what is left."""
    moved = [(r, walk.row) for r, walk in judged if walk.refused is None]
    if moved:
        law_RV[[r for r, _ in moved]] = laws_NV[[row for _, row in moved]].double()
    refused = [(r, walk.draft, walk.refused) for r, walk in judged if walk.refused is not None]
    if refused:
        places = [r for r, _, _ in refused]
        removed_RV = torch.stack([law_of(draft, i, laws_NV[0]) for _, draft, i in refused])
        law_RV[places] = residual(law_RV[places], removed_RV)


def build(_config: RecursiveConfig, _context: BuildContext) -> Recursive:
    """The verifier; it has no options."""
    return Recursive()
