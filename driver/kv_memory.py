"""What the pages of a run held, and what of them was waste, as the PagedAttention paper counts it.

Kwon et al., SOSP 2023, section 3.1 and figure 2: a slot for one token's rows holds a token; is
reserved for one that its request still comes to; is internal fragmentation where the request ends
before it; or is free. Free slots that no request could be given while one waits are external
fragmentation. A slot's fate is known when its request has ended, so requests are sampled while
they run and judged afterwards. Of table 0, whose pages every request has.
"""

from typing import Any, NamedTuple

import numpy as np

from interlock.core.batch import Ints, StepPlan, StepResult
from interlock.core.engine import Engine
from interlock.core.live import Live
from interlock.core.request import RequestId

MOST_SAMPLES = 2048
"""Beyond, every second one is dropped and steps are sampled half as often."""
MOST_POINTS = 200
"""Of the timeline in a summary."""


class _Sample(NamedTuple):
    """After one step: of each running request, and of the pool in pages."""

    now_s: float
    ids: Ints
    tokens: Ints
    slots: Ints
    """Token slots in the pages that it has or that are set aside for it."""
    pages: int
    """That requests have in their tables, and in how many runs of page ids they lie."""
    runs: int
    free: int
    cached: int
    stranded: int
    """Free pages that nobody could be given while somebody waits."""


class KVMemory:
    """An observer of an engine's steps (`Engine.watch`)."""

    def __init__(self, engine: Engine) -> None:
        self._core = engine.core
        self._samples: list[_Sample] = []
        self._lives: dict[int, Live] = {}
        self._steps, self._every = 0, 1

    def __call__(self, _plan: StepPlan, _result: StepResult) -> None:
        """Look at the pages after a step. O(pages in tables) for the steps that are sampled."""
        self._steps += 1
        if self._steps % self._every:
            return
        self._samples.append(self._look())
        if len(self._samples) > MOST_SAMPLES:
            del self._samples[::2]
            self._every *= 2

    def _look(self) -> _Sample:
        running, cache = self._core.queues.columns, self._core.cache
        pool, size = cache.pools[0], cache.page_size
        rows = np.flatnonzero(running.present)
        ids, counts = running.ids[rows].copy(), cache.counts[rows, 0]
        for id, row in zip(ids.tolist(), rows.tolist(), strict=True):
            self._lives.setdefault(id, running.at(row))
        owned = -(-(running.most[rows] - 1) // size) if pool.allocator.reserves else counts
        table = cache.tables[0][rows, : int(counts.max(initial=0))]
        follows = np.diff(table, axis=1) == 1
        inside = np.arange(follows.shape[1]) < counts[:, None] - 1
        pages, free = int(counts.sum()), pool.allocator.free_pages()
        grant = min(free, pool.allocator.largest_grant())
        return _Sample(
            now_s=self._core.ledger.last_end_s,
            ids=ids,
            tokens=running.computed[rows].copy(),
            slots=owned * size,
            pages=pages,
            runs=pages - int(np.count_nonzero(follows & inside)),
            free=free,
            cached=pool.cached,
            stranded=free - grant if self._core.num_waiting else 0,
        )

    def summary(self) -> dict[str, Any]:
        """Mean shares of all slots (they add up to 1), and pages of a request in one run of ids.

        `waste` is what of the slots that are not free or cached holds no token, with external
        fragmentation, as the paper's figure: 1 - tokens / (all slots - usable free - cached).
        """
        samples, cache = self._samples, self._core.cache
        total = len(samples) * cache.pools[0].num_pages * cache.page_size
        if not total:
            return {"samples": 0}
        reserved = internal = 0
        for one in samples:
            ends = np.array([self._end(id) for id in one.ids.tolist()], dtype=np.int64)
            used = np.minimum(one.slots, np.maximum(ends, one.tokens))
            reserved += int((used - one.tokens).sum())
            internal += int((one.slots - used).sum())
        size = cache.page_size
        shares = {
            "reserved": reserved,
            "internal": internal,
            "external": sum(one.stranded for one in samples) * size,
            "cached": sum(one.cached for one in samples) * size,
            "free": sum(one.free - one.stranded for one in samples) * size,
        }
        tokens = total - sum(shares.values())
        at_work = total - shares["cached"] - shares["free"]
        runs = sum(one.runs for one in samples)
        return {
            "samples": len(samples),
            "tokens": tokens / total,
            **{name: slots / total for name, slots in shares.items()},
            "waste": 1 - tokens / at_work if at_work else None,
            "pages_per_run": sum(one.pages for one in samples) / runs if runs else None,
            "timeline": self._timeline(),
        }

    def _timeline(self) -> dict[str, list[float]]:
        """Shares of pages that requests hold, and that wait cached, over the run's clock."""
        kept = self._samples[:: -(-len(self._samples) // MOST_POINTS)]
        pages = self._core.cache.pools[0].num_pages
        return {
            "now_s": [one.now_s for one in kept],
            "held": [round(1 - (one.free + one.cached) / pages, 4) for one in kept],
            "cached": [round(one.cached / pages, 4) for one in kept],
        }

    def _end(self, id: int) -> int:
        """Entries that a request came to: its newest token's rows are not computed."""
        live = self._lives[RequestId(id)]
        return live.sequence.num_prompt + len(live.record.output_token_ids) - 1
