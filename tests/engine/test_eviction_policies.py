"""Every eviction policy in an engine whose pool is far too small for its traffic."""

import pytest

from interlock.conf.hydra_edge import compose
from interlock.core.assemble import build_engine
from interlock.core.request import Status
from interlock.driver.run import make_entries, serve

BASE = (
    "executor=fixed", "workload=synthetic", "workload.source=random", "workload.turns=3",
    "workload.num_requests=60", "workload.prompt_tokens=60", "workload.prefix_tokens=40",
    "workload.output_tokens=12", "cache.page_size=8", "cache.num_pages=70", "progress=false",
)  # fmt: skip
POLICIES = (
    "lru", "fifo", "lfu", "length_aware", "s3fifo", "lruk", "arc", "cost_aware", "ttl", "priority",
)  # fmt: skip


def served(*overrides: str):
    config = compose([*BASE, *overrides])
    engine = build_engine(config)
    records = serve(engine, make_entries(config, engine), progress=False)
    assert {record.status for record in records} == {Status.FINISHED}
    cache = engine.core.cache
    cache.index.check_integrity()
    cache.check()
    assert cache.pools[0].held == 0
    return engine, sum(record.cached_tokens for record in records)


@pytest.mark.parametrize("index", ["radix", "block_hash"])
@pytest.mark.parametrize("policy", POLICIES)
def test_every_page_is_free_or_a_candidate_after_a_run_that_evicts_all_the_time(policy, index):
    engine, hits = served(f"cache/eviction={policy}", f"cache/index={index}")
    cache = engine.core.cache
    assert cache.counters.evicted_pages > 200
    assert hits > 0
    leaves = [run for run in cache.index.runs() if run.children == 0]
    assert cache.runs.policy.num_candidates() == len(leaves)


def test_ttl_lets_go_of_unused_pages_though_none_is_needed():
    engine, _ = served("cache/eviction=ttl", "cache.eviction.ttl_s=0.5", "cache.num_pages=9000")
    assert engine.core.cache.counters.evicted_pages > 100
    unexpired, _ = served("cache/eviction=ttl", "cache.num_pages=9000")
    assert unexpired.core.cache.counters.evicted_pages == 0


def test_recorded_run_makes_belady_at_least_as_good_as_lru(tmp_path):
    record = tmp_path / "uses.jsonl"
    _, lru = served(
        "cache/eviction=lru", f"cache.eviction.record={record}", "cache/index=block_hash"
    )
    _, best = served(
        "cache/eviction=belady", f"cache.eviction.path={record}", "cache/index=block_hash"
    )
    assert best > lru


def test_belady_without_a_recorded_run_is_refused_with_how_to_record_one():
    with pytest.raises(Exception, match=r"cache/eviction=lru cache\.eviction\.record=FILE"):
        build_engine(compose([*BASE, "cache/eviction=belady"]))
