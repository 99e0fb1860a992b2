"""No drafts: the baseline of every speculation study."""

from interlock.core.batch import NO_DRAFT, Draft, Ints
from interlock.core.component import BuildContext
from interlock.core.drafter import TokenDrafter
from interlock.core.request import RequestId
from interlock.plugins.speculative import NoneConfig


class NoDrafter(TokenDrafter):
    """Proposes nothing."""

    num_drafts = 0

    def propose(self, request: RequestId, tokens: Ints, limit: int) -> Draft:
        """The empty draft. O(1)."""
        return NO_DRAFT


def build(_config: NoneConfig, _context: BuildContext) -> NoDrafter:
    """The drafter that drafts nothing."""
    return NoDrafter()
