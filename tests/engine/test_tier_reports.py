"""Which compositions take a store, and what reports say of it."""

from pathlib import Path

import pytest

from interlock.conf.hydra_edge import compose
from interlock.conf.read_config import to_plain
from interlock.core.assemble import assemble
from interlock.core.errors import ConfigError
from interlock.core.registry import load_registry
from interlock.core.testing.memory_tier import MemoryTier, with_store
from interlock.driver.activity import counters, inert
from interlock.driver.rerun import Rerun
from interlock.driver.run_folder import SavedRun
from interlock.plugins.cache.tiers import needs
from tests.engine.tiers import (
    PROMPTS,
    drain,
    one_by_one,
    tiered,
)


@pytest.mark.parametrize(
    ("overrides", "reason"),
    [
        (["cache/tiers=memory", "cache=none"], "this one keeps nothing"),
        (["cache/tiers=memory", "executor=fixed"], "this executor has none"),
        (["cache/tiers=memory", "parallel=tensor"], "each rank has a part of every page"),
        (["cache/tiers=priced"], "this executor's pages have some"),
        (["cache/tiers/below=priced", "executor=fixed"], "cache/tiers=none is none"),
        (
            ["cache/tiers=priced", "executor=fixed", "cache.write=sometimes"],
            "not one of through, back",
        ),
        (["cache.load_timeout_s=0"], "not above 0"),
    ],
)
def test_what_cannot_be_tiered_is_refused_with_the_reason(models, overrides, reason):
    registry = with_store(load_registry(), MemoryTier(), requires=needs.of_bytes)
    with pytest.raises(ConfigError, match=reason):
        assemble([f"model={models['gqa']}", *overrides], registry)


def test_the_report_counts_what_stores_and_the_load_policy_did(models):
    engine, store = tiered(models["gqa"])
    one_by_one(engine, PROMPTS)
    store.fails = lambda what, _key: what == "read"
    one_by_one(engine, PROMPTS[:1])
    drain(engine)
    found = counters(engine)
    assert found["cache/tiers"]["saved"] > 0
    assert found["cache/tiers"]["missed"] == 7
    assert found["cache/tiers"]["failed_broken"] > 0
    assert found["cache/tiers/below"] == {}
    assert found["cache/load"]["loads"] == 1
    assert not {"cache/tiers", "cache/tiers/below", "cache/load"} & set(inert(engine))
    engine.close()


def test_a_store_that_was_never_used_is_reported(models):
    engine, _ = tiered(models["gqa"])
    assert {"cache/tiers", "cache/load"} <= set(inert(engine))
    assert "cache/tiers/below" not in inert(engine)
    engine.close()


def test_a_run_with_a_store_is_not_rerun():
    config = to_plain(compose(["cache/tiers=cpu"]))
    rerun = Rerun(SavedRun(Path("saved"), {"config": config, "device": {}}, []), [])
    with pytest.raises(ConfigError, match="cache/tiers=cpu, whose copies end"):
        rerun.config()
