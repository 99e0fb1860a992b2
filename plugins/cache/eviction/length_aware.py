"""Least frequently used first, and of those what comes latest in a prompt."""

from interlock.core.component import BuildContext
from interlock.core.eviction import RankedEviction
from interlock.core.prefix_index import Run
from interlock.plugins.cache.eviction import LengthAwareConfig


class LengthAwareEviction(RankedEviction):
    """The run with the fewest uses goes first; of equals the one that ends deepest in its prompt.

    Mooncake's LengthAwareCache (Qin et al., arXiv 2407.00079, section 4.2 and table 1): "similar to
    LFU but prioritizing evicting cache blocks occurring later in requests". Counts begin at 1 when
    a run is indexed; ties that are left go by last use.
    """

    def rank(self, run: Run) -> tuple[int, int, float]:
        """Uses, then pages before the run's end, most first, then last use."""
        return run.uses, -run.depth_pages - len(run.pages), run.last_used_s


def build(_config: LengthAwareConfig, _context: BuildContext) -> LengthAwareEviction:
    """The policy without candidates."""
    return LengthAwareEviction()
