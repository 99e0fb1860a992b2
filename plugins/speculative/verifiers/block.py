"""Block verification of chains.

Sun et al., "Block verification accelerates speculative decoding" (ICLR 2025, arXiv 2403.10444,
algorithm 2). With p_0 = 1, P and Q the two laws at a place and x its candidate,

    p_i = min(p_{i-1} P_i(x_i) / Q_i(x_i), 1)
    S_i = sum over x of max(p_i P_{i+1}(x) - Q_{i+1}(x), 0)
    h_i = S_i / (S_i + 1 - p_i),  h of the last candidate = its p_i

and the longest i accepted with probability h_i, tried from the end, is the block; the last token
follows max(p_i P_{i+1} - Q_{i+1}, 0), or the target's law after the whole draft. The tries are one
draw: the block is at least i long with probability 1 - product over j >= i of (1 - h_j), and one
number, that of the anchor's position, is compared with all of these.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from interlock.core.batch import Draft
from interlock.core.component import BuildContext
from interlock.core.streams import Purpose
from interlock.core.verifier import TargetRows, Verdict
from interlock.plugins.speculative.verifiers.options import BlockConfig
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


class Block(DraftsVerifier):
    """Accepts as much of a chain as can be: in expectation never less than the ratio rule."""

    def judge(self, owned: Sequence[Owned], rows: TargetRows) -> list[Verdict]:
        """See DraftsVerifier. A pass over the vocabulary for each candidate."""
        laws_NV, numbers = rows.laws(), rows.uniforms(Purpose.ACCEPT).tolist()
        target, drafted = target_chances(owned, laws_NV), draft_chances(owned)
        endings = []
        for (draft, first), ps, qs in zip(owned, target, drafted, strict=True):
            require_chain(draft, "block")
            reached = _reached(ps, qs)
            count = _accepted(draft, laws_NV[first:], reached, numbers[first])
            removed = law_of(draft, count, laws_NV[0]) if count < len(ps) else None
            endings.append(Ending(first, count, removed, reached[count]))
        return chain_verdicts(rows, laws_NV, endings)


def _reached(target: Sequence[float], drafted: Sequence[float]) -> list[float]:
    """p_0, p_1, ...: what the target leaves of the chance to come this far."""
    reached = [1.0]
    for p, q in zip(target, drafted, strict=True):
        mass = reached[-1] * p
        reached.append(0.0 if mass == 0 else 1.0 if mass >= q else mass / q)
    return reached


def _accepted(draft: Draft, laws_NV: Tensor, reached: Sequence[float], number: float) -> int:
    """The length of the block; `laws_NV` starts at the anchor's row."""
    total = len(draft.tokens)
    if number < reached[total]:
        return total
    removed_NV = torch.stack([law_of(draft, i, laws_NV[0]) for i in range(total)]).double()
    reached_N1 = torch.tensor(reached[:total], dtype=torch.float64, device=laws_NV.device)[:, None]
    left = (reached_N1 * laws_NV[:total].double() - removed_NV).clamp_(min=0).sum(-1).tolist()
    shorter = 1 - reached[total]
    for i in range(total - 1, 0, -1):
        room = left[i] + 1 - reached[i]
        shorter *= 0.0 if room == 0 else (1 - reached[i]) / room
        if number < 1 - shorter:
            return i
    return 0


def build(_config: BlockConfig, _context: BuildContext) -> Block:
    """The verifier; it has no options."""
    return Block()
