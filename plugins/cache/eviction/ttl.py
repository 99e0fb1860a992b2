"""A time to live: what was not used for so long goes, though no page is needed."""

from interlock.core.component import BuildContext
from interlock.core.prefix_index import Run
from interlock.plugins.cache.eviction import TTLConfig
from interlock.plugins.cache.eviction.lru import LRUEviction


class TTLEviction(LRUEviction):
    """A run goes `ttl_s` after its last use, as prompt caches of hosted services promise.

    When pages run out before, the run that would expire first goes: the least recently used. A run
    that others follow was used no earlier than they, so it never has to go before them.
    """

    def __init__(self, ttl_s: float) -> None:
        super().__init__()
        self._ttl_s = ttl_s

    def expired(self, now_s: float) -> Run | None:
        """The run whose time was over first, if it is over at `now_s`."""
        first = self.peek()
        if first is None or first.last_used_s + self._ttl_s > now_s:
            return None
        return self.choose()


def build(config: TTLConfig, _context: BuildContext) -> TTLEviction:
    """The policy without candidates."""
    return TTLEviction(config.ttl_s)
