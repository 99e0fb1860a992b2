"""The ratio rule for chains: speculative sampling.

Leviathan, Kalman, Matias (ICML 2023, algorithm 1); Chen et al. (arXiv 2302.01318, algorithm 2).
Candidate x is accepted when u q(x) < p(x), which is the ratio rule without a division; after the
first one that is not, the last token follows max(p - q, 0), and after all of them the target's law.
Exact when each candidate was drawn from its q, by noise of its own, and when whether it is in the
draft does not depend on it.
"""

from collections.abc import Sequence

from interlock.core.component import BuildContext
from interlock.core.streams import Purpose
from interlock.core.verifier import TargetRows, Verdict
from interlock.plugins.speculative.verifiers.options import RatioConfig
from interlock.plugins.speculative.verifiers.rejection import (
    DraftsVerifier,
    Ending,
    Owned,
    chain_verdicts,
    draft_chances,
    law_of,
    require_chain,
    target_chances,
)


class Ratio(DraftsVerifier):
    """Accepts the candidates of a chain one after the other."""

    def judge(self, owned: Sequence[Owned], rows: TargetRows) -> list[Verdict]:
        """See DraftsVerifier. O(candidates) and two passes over the vocabulary a request."""
        laws_NV, numbers = rows.laws(), rows.uniforms(Purpose.ACCEPT).tolist()
        target, drafted = target_chances(owned, laws_NV), draft_chances(owned)
        endings = []
        for (draft, first), ps, qs in zip(owned, target, drafted, strict=True):
            require_chain(draft, "ratio")
            tries = enumerate(zip(numbers[first:], ps, qs, strict=False))
            count = next((i for i, (u, p, q) in tries if not u * q < p), len(ps))
            removed = law_of(draft, count, laws_NV[0]) if count < len(ps) else None
            endings.append(Ending(first, count, removed))
        return chain_verdicts(rows, laws_NV, endings)


def build(_config: RatioConfig, _context: BuildContext) -> Ratio:
    """The verifier; it has no options."""
    return Ratio()
