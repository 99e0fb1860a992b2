"""Least recently used first."""

from interlock.core.component import BuildContext
from interlock.core.eviction import RankedEviction
from interlock.core.prefix_index import Run
from interlock.plugins.cache.eviction import LRUConfig


class LRUEviction(RankedEviction):
    """The run matched or inserted longest ago goes first; of equals the one deepest in its prompt.

    Depth breaks ties because one request touches all runs of its prefix at one instant, and the
    shallow ones serve more prompts.
    """

    def rank(self, run: Run) -> tuple[float, int]:
        """Time of last use in seconds, then pages before the run, most first."""
        return run.last_used_s, -run.depth_pages


def build(config: LRUConfig, _context: BuildContext) -> LRUEviction:
    """The policy without candidates."""
    if not config.record:
        return LRUEviction()
    from interlock.plugins.cache.eviction.belady import RecordedLRU, open_record

    return RecordedLRU(open_record(config.record))
