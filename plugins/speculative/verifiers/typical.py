"""Typical acceptance: a candidate is kept when the target finds it likely enough.

Medusa (Cai et al., ICML 2024, section 2.3.1): x is accepted when p(x) > min(epsilon,
delta exp(-H(p))), H the entropy of p in nats; of the accepted paths the longest is kept, among
equally long ones the most likely. The token after it is the most likely one, as there. What comes
out follows another law than the target's, except at temperature 0.
"""

import math
from collections.abc import Sequence

import torch

from interlock.core.batch import Draft
from interlock.core.component import BuildContext
from interlock.core.verifier import TargetRows, Verdict
from interlock.plugins.speculative.verifiers.options import TypicalConfig
from interlock.plugins.speculative.verifiers.rejection import (
    DraftsVerifier,
    Owned,
    target_chances,
)


class Typical(DraftsVerifier):
    """Accepts the longest path of candidates that are likely enough."""

    def __init__(self, epsilon: float, delta: float) -> None:
        self._epsilon, self._delta = epsilon, delta

    def judge(self, owned: Sequence[Owned], rows: TargetRows) -> list[Verdict]:
        """See DraftsVerifier. A pass over the vocabulary for each row; draws nothing."""
        laws_NV = rows.laws()
        entropy_N = torch.special.entr(laws_NV.double()).sum(-1)
        asked = (self._delta * (-entropy_N).exp()).clamp(max=self._epsilon).tolist()
        paths = []
        for (draft, first), ps in zip(owned, target_chances(owned, laws_NV), strict=True):
            before = range(-1, len(ps) - 1) if draft.parents is None else draft.parents
            limits = (asked[first + 1 + parent] for parent in before)
            sound = zip(ps, limits, strict=True)
            scores = [math.log(p) if p > limit else -math.inf for p, limit in sound]
            paths.append(_longest(draft, scores))
        ends = [
            one.first + (path[-1] + 1 if path else 0)
            for one, path in zip(owned, paths, strict=True)
        ]
        best = laws_NV[ends].argmax(-1).tolist()
        return [Verdict(path, token) for path, token in zip(paths, best, strict=True)]


def _longest(draft: Draft, scores: Sequence[float]) -> tuple[int, ...]:
    """The longest path of finite scores; of several the one of the largest sum, then the first."""
    paths: list[tuple[int, ...]] = [()]
    sums = [0.0]
    for candidate, score in enumerate(scores):
        parent = candidate if draft.parents is None else draft.parents[candidate] + 1
        paths.append((*paths[parent], candidate))
        sums.append(sums[parent] + score)
    sound = [node for node, total in enumerate(sums) if total > -math.inf]
    return paths[max(sound, key=lambda node: (len(paths[node]), sums[node]))]


def build(config: TypicalConfig, _context: BuildContext) -> Typical:
    """The verifier of these options."""
    return Typical(config.epsilon, config.delta)
