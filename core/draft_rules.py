"""What planning needs to know of the drafter, by ability rather than by name."""

from dataclasses import dataclass

import numpy as np

from interlock.core.batch import Draft, Ints
from interlock.core.drafter import TokenDrafter


@dataclass(frozen=True)
class DraftRules:
    """A drafter's abilities and limits."""

    name: str = "no drafter"
    """Class of the drafter, or of what simulates it."""
    num_drafts: int = 0
    lookback_tokens: int = 0
    own_rows: bool = False
    """The drafter writes cache rows ahead of the committed ones."""
    host: TokenDrafter | None = None
    """A drafter that proposes from token ids when a step is planned."""
    max_positions: int | None = None

    def limits(self, lengths: Ints, tokens_left: Ints) -> Ints:
        """Candidates worth verifying after `lengths` tokens when `tokens_left` may follow."""
        limits = np.minimum(self.num_drafts, tokens_left - 1)
        if self.max_positions is not None:
            limits = np.minimum(limits, self.max_positions - lengths)
        return np.maximum(limits, 0)


def shorten(draft: Draft, limit: int) -> Draft:
    """The first `limit` candidates; parents precede children, so any prefix is a draft."""
    if len(draft.tokens) <= limit:
        return draft
    parents = None if draft.parents is None else draft.parents[:limit]
    return Draft(draft.tokens[:limit], parents)
