"""What requests care least about goes first, for as long as they said."""

from heapq import heappop, heappush

from interlock.core.component import BuildContext
from interlock.core.eviction import RankedEviction
from interlock.core.prefix_index import Run
from interlock.core.retention import DEFAULT_PRIORITY, NO_END, RETAIN_S
from interlock.plugins.cache.eviction import PriorityConfig


class PriorityEviction(RankedEviction):
    """The run of the lowest retention priority goes first; of equals the one unused for longest.

    Priorities are what requests say of ranges of their tokens (`Request.retention`), 35 where they
    say nothing; that of a page is said by its first token, and the request that said something last
    counts. With a duration, a run is one of priority 35 again so long after its last use. This is
    the rule of TensorRT-LLM's KvCacheRetentionConfig and of its block eviction (LRU within each
    priority, docs "KV cache system"). O(log n).
    """

    def __init__(self) -> None:
        super().__init__()
        self._ends: list[tuple[float, int, Run]] = []
        self._numbers = 0
        self._now_s = 0.0

    def add(self, run: Run) -> None:
        """See EvictionPolicy."""
        super().add(run)
        end_s = self._end_s(run)
        if self._now_s < end_s < NO_END:
            self._numbers += 1
            heappush(self._ends, (end_s, self._numbers, run))

    def discard(self, run: Run) -> None:
        """See EvictionPolicy."""
        super().discard(run)
        self._forget_stale_ends()

    def choose(self) -> Run | None:
        """See EvictionPolicy."""
        run = super().choose()
        self._forget_stale_ends()
        return run

    def _forget_stale_ends(self) -> None:
        """Keep one end of each candidate: O(log n) an entry, since half of them go."""
        if len(self._ends) > 2 * self.num_candidates() + 8:
            last = {id(item[2]): item for item in sorted(self._ends) if self.holds(item[2])}
            self._ends = sorted(last.values())

    def rank(self, run: Run) -> tuple[int, float, int]:
        """Priority as of now, last use, depth, deepest first."""
        holds = self._end_s(run) > self._now_s
        return (
            run.priority if holds else DEFAULT_PRIORITY,
            run.last_used_s,
            -run.depth_pages,
        )

    def _end_s(self, run: Run) -> float:
        return run.last_used_s + run.state.get(RETAIN_S, NO_END)

    def expired(self, now_s: float) -> Run | None:
        """Nothing goes by itself: candidates whose time is over are ranked again."""
        self._now_s = max(self._now_s, now_s)
        while self._ends and self._ends[0][0] <= self._now_s:
            _, _, run = heappop(self._ends)
            if self.holds(run) and self._end_s(run) <= self._now_s:
                self.discard(run)
                super().add(run)
        return None


def build(_config: PriorityConfig, _context: BuildContext) -> PriorityEviction:
    """The policy without candidates."""
    return PriorityEviction()
