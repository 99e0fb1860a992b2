"""What eviction policies may rely on, and whose pages go first, when requests share a run."""

import pytest

from interlock.core.prefix_index import Run
from interlock.plugins.cache.eviction.lru import LRUEviction
from tests.engine.serving import Client, asking, build, registry_with, serve, tokens


class WatchedLRU(LRUEviction):
    """Notes what each candidate's times and counts were when it became one."""

    def __init__(self) -> None:
        super().__init__()
        self.noted: dict[int, tuple[Run, tuple[float, ...]]] = {}

    def add(self, run: Run) -> None:
        self.noted[id(run)] = run, statistics(run)
        super().add(run)

    def discard(self, run: Run) -> None:
        self.noted.pop(id(run), None)
        super().discard(run)


def statistics(run: Run) -> tuple[float, ...]:
    return run.created_s, run.last_used_s, run.uses, run.priority


@pytest.mark.parametrize("index", ["radix", "block_hash"])
def test_a_candidates_times_stand_still_and_the_longest_unused_pages_go_first(index):
    """One request adds a page to a run that another holds, and ends before the other does."""
    policy = WatchedLRU()
    registry = registry_with("eviction", lambda _context: policy)
    engine = build(None, registry, eviction="ours", index=index, num_pages=12)
    prefix = tokens(8, salt=1)
    serve(engine, asking(0, prefix, 1))
    client = Client(engine)
    client.submit(asking(1, (*prefix, 5, 6, 7, 8, 9), 1), asking(2, (*prefix, 9), 3))
    while engine.has_work:
        client.step()
        for run, noted in policy.noted.values():
            assert statistics(run) == noted
    assert engine.core.cache.pools[0].cached == 3
    first = policy.choose()
    assert first is not None
    assert first.depth_pages == 2, "the page of the request that ended first"
