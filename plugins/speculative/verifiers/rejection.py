"""What the rules that compare two laws share: rows, chances, and the draw that ends a verdict.

p is the target's law at a node, q the law that a candidate was drawn from. A candidate without a
law was chosen, which is a draw from the law that has all its mass on it; the rules are exact then
as well.

Noise is read at the positions of the tokens that a verdict gives, and nowhere else, so that no
later verdict of the request reads a number that decided this one.

Legend: N rows, R requests, V vocabulary.
"""

from abc import abstractmethod
from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

import torch
from torch import Tensor

from interlock.core.batch import Draft
from interlock.core.errors import ContractError
from interlock.core.streams import Purpose
from interlock.core.verifier import TargetRows, Verdict, Verifier


class Ending(NamedTuple):
    """How a chain's verdict ends: with `taken` candidates from row `first` on, and a last token.

    That one follows max(scale * p - removed, 0), normalised, where p is the law after them;
    without `removed` it follows p.
    """

    first: int
    taken: int
    removed: Tensor | None = None
    scale: float = 1.0


class Owned(NamedTuple):
    """A draft that is not empty, and the row of its anchor; candidate i has row first + 1 + i."""

    draft: Draft
    first: int


class DraftsVerifier(Verifier):
    """A rule for requests with candidates; the others get what plain decoding draws."""

    def accept(self, drafts: Sequence[Draft], rows: TargetRows) -> list[Verdict]:
        """See Verifier."""
        first = list(accumulate((1 + len(draft.tokens) for draft in drafts), initial=0))
        owned = [Owned(d, row) for d, row in zip(drafts, first, strict=False) if d.tokens]
        judged = iter(self.judge(owned, rows) if owned else ())
        plain = rows.sample() if len(owned) < len(drafts) else []
        return [
            next(judged) if draft.tokens else Verdict((), plain[row])
            for draft, row in zip(drafts, first, strict=False)
        ]

    @abstractmethod
    def judge(self, owned: Sequence[Owned], rows: TargetRows) -> list[Verdict]:
        """One verdict for each of these drafts, at least one."""


def require_chain(draft: Draft, rule: str) -> None:
    """Raise ContractError if a candidate follows another one than the one before."""
    parents = draft.parents
    if parents is not None and tuple(parents) != tuple(range(-1, len(parents) - 1)):
        raise ContractError(f"spec/verifier={rule} is a rule for chains and got the tree {draft}")


def law_of(draft: Draft, candidate: int, like_V: Tensor) -> Tensor:
    """q [V] of one candidate."""
    if draft.laws is not None:
        return draft.laws[candidate]
    law_V = torch.zeros_like(like_V)
    law_V[draft.tokens[candidate]] = 1
    return law_V


def draft_chances(owned: Sequence[Owned]) -> list[list[float]]:
    """q of each candidate at its own token."""
    return [
        [1.0] * len(draft.tokens)
        if draft.laws is None
        else draft.laws[range(len(draft.tokens)), list(draft.tokens)].tolist()
        for draft, _ in owned
    ]


def target_chances(owned: Sequence[Owned], laws_NV: Tensor) -> list[list[float]]:
    """p of each candidate at its own token."""
    parents, tokens = list[int](), list[int]()
    for draft, first in owned:
        before = range(-1, len(draft.tokens) - 1) if draft.parents is None else draft.parents
        parents += [first + 1 + parent for parent in before]
        tokens += draft.tokens
    chances = iter(laws_NV[parents, tokens].tolist())
    return [[next(chances) for _ in draft.tokens] for draft, _ in owned]


def residual(law_RV: Tensor, removed_RV: Tensor) -> Tensor:
    """max(law - removed, 0), normalised, in fp64; `law`, normalised, where nothing is left."""
    left_RV = (law_RV.double() - removed_RV.double()).clamp_(min=0)
    total_R1 = left_RV.sum(-1, keepdim=True)
    left_RV = torch.where(total_R1 > 0, left_RV, law_RV.double())
    return left_RV / left_RV.sum(-1, keepdim=True)


def drawn(law_RV: Tensor, numbers: Sequence[float]) -> list[int]:
    """One token a row: the first whose cumulative probability exceeds the row's number."""
    cumulated_RV = law_RV.to(torch.float64, copy=True).cumsum_(-1)
    total_R1 = cumulated_RV[:, -1:].contiguous()
    numbers_R = torch.tensor(numbers, dtype=torch.float64, device=law_RV.device)
    tokens_R1 = torch.searchsorted(cumulated_RV, numbers_R[:, None] * total_R1, right=True)
    last_R1 = torch.searchsorted(cumulated_RV, total_R1)  # the last id that has any mass
    tokens: list[int] = torch.minimum(tokens_R1, last_R1).squeeze(1).tolist()
    return tokens


def chain_verdicts(rows: TargetRows, laws_NV: Tensor, endings: Sequence[Ending]) -> list[Verdict]:
    """The verdicts of chains, with their last tokens."""
    ends = [ending.first + ending.taken for ending in endings]
    law_RV = laws_NV[ends].double()
    cut = [place for place, ending in enumerate(endings) if ending.removed is not None]
    if cut:
        scales = [endings[place].scale for place in cut]
        scale_R1 = torch.tensor(scales, dtype=torch.float64, device=law_RV.device)[:, None]
        removed_RV = torch.stack([law for e in endings if (law := e.removed) is not None])
        law_RV[cut] = residual(scale_R1 * law_RV[cut], removed_RV)
    tokens = drawn(law_RV, rows.uniforms(Purpose.RESIDUAL)[ends].tolist())
    return [
        Verdict(tuple(range(ending.taken)), token)
        for ending, token in zip(endings, tokens, strict=True)
    ]
