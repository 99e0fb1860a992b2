"""What joins the results of ranks, and what stops ranks that disagree."""

import itertools
import threading

import pytest
import torch
from torch.distributed import HashStore

from interlock.core.batch import Draft
from interlock.core.drafter import FeatureDrafter
from interlock.core.errors import RankError
from interlock.core.registry import load_registry
from interlock.core.testing.parallel_contract import RanksContract
from interlock.core.testing.thread_ranks import ThreadRanks, ThreadStrategy, run_on_ranks
from interlock.core.testing.tiny import write_tiny_checkpoint
from interlock.plugins.parallel.torch_ranks import join
from tests.engine.serving import asking, build, registry_with
from tests.parallel.threads import with_threads


class TestThreads(RanksContract):
    def on_ranks(self, size, work):
        return run_on_ranks(size, work)


class TestGloo(RanksContract):
    """Process groups of threads: gloo connects them through the loopback all the same."""

    def on_ranks(self, size, work):
        store, results, joined = HashStore(), {}, []

        def run(rank):
            ranks = join(store, rank, size, None, lambda: None)
            joined.append(ranks)  # freeing a group closes its connections: only after all met
            results[rank] = work(ranks)

        threads = [threading.Thread(target=run, args=(rank,)) for rank in range(size)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return [results[rank] for rank in range(size)]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    families = list(load_registry().families.values())
    return write_tiny_checkpoint(tmp_path_factory.mktemp("model"), "gqa", families)


class Uneven(ThreadRanks):
    """Sums that are a little more on rank 1."""

    def sum(self, x):
        return super().sum(x) * (1 + self.rank * 1e-12)


def test_ranks_whose_features_differ_by_a_bit_stop(model, monkeypatch):
    monkeypatch.setattr(ThreadStrategy, "kind", Uneven)
    engine = build(model, with_threads(), parallel="threads2")
    engine.submit(asking(0, 5))
    with pytest.raises(RankError, match="ContractError: rank 1 has in step 0 features of sum"):
        list(engine.outputs())
    engine.close()


class Moody(FeatureDrafter):
    """Drafts something else on every rank."""

    num_drafts = 1
    _count = itertools.count(2)

    def propose(self, rows, context):
        return [Draft((next(self._count),)) if limit else Draft() for limit in rows.limits]


def test_ranks_whose_drafters_differ_stop(model):
    registry = with_threads(registry_with("spec", lambda _context: Moody()))
    engine = build(model, registry, parallel="threads2", spec="ours")
    engine.submit(asking(0, 5))
    with pytest.raises(RankError, match="ContractError: rank 1 has after step 0 drafts"):
        list(engine.outputs())
    engine.close()


def test_a_rank_with_less_memory_decides_how_many_pages_all_have(model, monkeypatch):
    sizes = {0: 40, 1: 30, 2: 50, 3: 60}

    def of_this_rank(_config, layout, *_arguments):
        name = threading.current_thread().name
        rank = int(name.removeprefix("rank ")) if name.startswith("rank ") else 0
        return [sizes[rank]] * len(layout.lifetimes)

    monkeypatch.setattr("interlock.conf.rank_parts.pool_sizes", of_this_rank)
    engine = build(model, with_threads(), parallel="threads4")
    assert engine.core.cache.pools[0].num_pages == 30
    plane = next(iter(engine.planes.of_layer[0].values()))
    assert plane.shape[:3] == torch.Size([31, 4, 1])  # 30 pages and the scratch page
    engine.close()
