"""Oldest first, however often it was used since."""

from interlock.core.component import BuildContext
from interlock.core.eviction import RankedEviction
from interlock.core.prefix_index import Run
from interlock.plugins.cache.eviction import FIFOConfig


class FIFOEviction(RankedEviction):
    """The run indexed longest ago goes first; of equals the one deepest in its prompt."""

    def rank(self, run: Run) -> tuple[float, int]:
        """Time of insertion in seconds, then pages before the run, most first."""
        return run.created_s, -run.depth_pages


def build(_config: FIFOConfig, _context: BuildContext) -> FIFOEviction:
    """The policy without candidates."""
    return FIFOEviction()
