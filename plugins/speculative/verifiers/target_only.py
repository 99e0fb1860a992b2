"""Target-only verification: draw the target's token at each node and follow it down the draft.

The emitted tokens are the target's own draws, so the output law is exact for every draft, however
it was chosen, as long as it does not depend on the noise of its positions; with noise keyed by
position the tokens equal those of plain decoding. Also called sample-and-match: the one-hot case
of Leviathan, Kalman, Matias (ICML 2023, section 2.3) and, for trees, of SpecInfer (Miao et al.,
ASPLOS 2024, section 4.3).
"""

from collections.abc import Sequence

from interlock.core.batch import Draft
from interlock.core.component import BuildContext
from interlock.core.verifier import TargetRows, Verdict, Verifier
from interlock.plugins.speculative.verifiers.options import TargetOnlyConfig


class TargetOnly(Verifier):
    """Accepts a candidate when it is the token that the target draws at its parent."""

    def accept(self, drafts: Sequence[Draft], rows: TargetRows) -> list[Verdict]:
        """See Verifier. O(depth) for a chain, O(candidates) for a tree; one draw per row."""
        draws = rows.sample()
        verdicts = []
        first = 0
        for draft in drafts:
            end = first + 1 + len(draft.tokens)
            verdicts.append(_follow(draft, draws[first:end]))
            first = end
        assert first == len(draws), f"{len(draws)} rows for drafts that own {first}"
        return verdicts


def _follow(draft: Draft, draws: Sequence[int]) -> Verdict:
    """The path whose tokens are the draws at their parents; draws[0] is the anchor's.

    Of equal siblings the first is taken. One pass suffices: parents come before children.
    """
    path: list[int] = []
    node = -1
    for candidate, token in enumerate(draft.tokens):
        parent = draft.parents[candidate] if draft.parents else candidate - 1
        if parent == node and token == draws[node + 1]:
            path.append(candidate)
            node = candidate
        elif draft.parents is None:
            break
    return Verdict(tuple(path), draws[node + 1])


def build(_config: TargetOnlyConfig, _context: BuildContext) -> TargetOnly:
    """The verifier; it has no options."""
    return TargetOnly()
