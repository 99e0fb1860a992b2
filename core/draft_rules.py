"""What planning needs to know of speculation: the drafter's abilities, and who decides lengths."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from interlock.core.batch import Draft, Ints
from interlock.core.clock import WallClock
from interlock.core.draft_length import DraftLength, StepLoad
from interlock.core.drafter import TokenDrafter
from interlock.core.errors import ContractError
from interlock.core.ledger import StepLedger


class Proposals(NamedTuple):
    """What a drafter on the host did while a step was planned: the requests it was asked for, the
    candidates of each at most, and the seconds that took."""

    requests: int = 0
    longest: int = 0
    seconds: float = 0.0


@dataclass(frozen=True)
class DraftRules:
    """A drafter's abilities and limits. Names in errors are those of classes."""

    name: str
    """Class of the drafter, or of what simulates it."""
    length: DraftLength
    num_drafts: int
    depth: int | None = None
    """Candidates on a longest path; None: num_drafts."""
    lookback_tokens: int = 0
    ahead: Ints | None = None
    """By number of candidates: the entries that the drafter writes after the last committed one;
    None: it writes none."""
    host: TokenDrafter | None = None
    """A drafter that proposes from token ids when a step is planned."""
    max_positions: int | None = None
    whole: bool = False
    """Drafts are of use as a whole: a length policy decides between all of one and none."""
    one_pass: bool = False
    """All candidates of a step come out of one forward pass of the drafter."""
    clock_s: Callable[[], float] = WallClock().now
    """Seconds: what times a drafter on the host."""
    ledger: StepLedger = field(default_factory=StepLedger)
    """The run's: it counts what is cut, and how often the policy decided for less."""

    def limits(self, lengths: Ints, tokens_left: Ints) -> Ints:
        """Candidates worth verifying after `lengths` tokens when `tokens_left` may follow.

        A tree is whole as long as its longest path is of use; then it is cut like a chain.
        """
        useful = tokens_left - 1
        if self.max_positions is not None:
            useful = np.minimum(useful, self.max_positions - lengths)
        cut = np.clip(useful, 0, self.num_drafts)
        return np.where(useful >= (self.depth or self.num_drafts), self.num_drafts, cut)

    def wanted(self, decodes: int) -> int:
        """Candidates that each request should get, by the length policy."""
        wanted = self.length.propose(self.num_drafts, decodes)
        if not isinstance(wanted, int | np.integer) or not 0 <= wanted <= self.num_drafts:
            raise self._broken(f"propose gave {wanted!r}, no number from 0 to {self.num_drafts}")
        if self.whole and wanted:
            wanted = self.num_drafts
        self.ledger.shortened += int(wanted < self.num_drafts)
        return int(wanted)

    def cut(self, drafts: Sequence[Draft], load: StepLoad) -> list[Draft]:
        """As much of each draft as the length policy verifies and the step has room for."""
        lengths, room = list(self.length.verify(drafts, load)), load.room
        if len(lengths) != len(drafts):
            raise self._broken(f"verify gave {len(lengths)} lengths for {len(drafts)} drafts")
        kept = []
        for draft, length in zip(drafts, lengths, strict=True):
            if not isinstance(length, int | np.integer) or not 0 <= length <= len(draft.tokens):
                raise self._broken(f"verify gave {length!r} of {len(draft.tokens)} candidates")
            if self.whole and length:
                length = len(draft.tokens)
            self.ledger.shortened += int(length < len(draft.tokens))
            kept.append(draft.first(min(int(length), room)))
            self.ledger.offered(draft, len(kept[-1].tokens))
            room -= len(kept[-1].tokens)
        return kept

    def _broken(self, what: str) -> ContractError:
        return ContractError(f"{type(self.length).__name__}.{what}")
