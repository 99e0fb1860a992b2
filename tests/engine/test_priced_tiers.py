"""Tiers in virtual time: what copies take, and what policies make of it."""

import pytest

from interlock.core.assemble import assemble
from interlock.core.request import HashedPrompt, Request, SamplingParams
from interlock.core.testing.integrity import check_engine

PAGE_SIZE, TOKENS, KV_BYTES = 16, 1600, 131072
STEP_S, TOKEN_S, LATENCY_S, BYTES_PER_S = 0.010, 0.05e-3, 1e-3, 10e9


def priced(*more):
    return assemble(
        [
            "executor=fixed", "model=tiny-gqa", "cache/tiers=priced", "cache.tiers.latency_ms=1",
            "cache.tiers.gb_per_s=10", f"cache.page_size={PAGE_SIZE}", "cache.num_pages=101",
            f"executor.kv_bytes_per_token={KV_BYTES}", *more,
        ]
    )  # fmt: skip


def ask(engine, block, index=0, wait_s=100.0):
    prompt = HashedPrompt((block,), TOKENS, TOKENS)
    arrival_s = engine.clock.now() + wait_s
    sampling = SamplingParams(max_tokens=2, ignore_eos=True)
    engine.submit(Request(index, (), sampling, arrival_s=arrival_s, hashed_prompt=prompt))


def first_token_s(engine, block):
    ask(engine, block)
    (record,) = ended(engine)
    return record.chunk_times_s[0] - record.arrival_s


def ended(engine):
    found = []
    while engine.has_work:
        found += [output.finished for output in engine.step() if output.finished]
        check_engine(engine)
    return found


COMPUTED_S = STEP_S + TOKENS * TOKEN_S
PAGES = (TOKENS - 1) // PAGE_SIZE
LOADED_S = (
    LATENCY_S + PAGES * PAGE_SIZE * KV_BYTES / BYTES_PER_S
    + STEP_S + (TOKENS - PAGES * PAGE_SIZE) * TOKEN_S
)  # fmt: skip


@pytest.mark.parametrize(("load", "again_s"), [("always", LOADED_S), ("never", COMPUTED_S)])
def test_a_load_takes_latency_and_bytes_over_bandwidth(load, again_s):
    engine = priced(f"cache/load={load}")
    assert [first_token_s(engine, block) for block in (1, 2)] == pytest.approx([COMPUTED_S] * 2)
    assert first_token_s(engine, 1) == pytest.approx(again_s)
    engine.close()


def test_pages_that_are_written_back_as_they_are_evicted_are_waited_for():
    engine = priced("cache/load=always", "cache.write=back")
    first_token_s(engine, 1)
    later_s = first_token_s(engine, 2)
    assert COMPUTED_S < later_s < COMPUTED_S + 8 * LATENCY_S + TOKENS * KV_BYTES / BYTES_PER_S
    assert first_token_s(engine, 1) < COMPUTED_S
    pool = engine.core.cache.pools[0]
    assert pool.held == 0
    engine.close()


@pytest.mark.parametrize(("gb_per_s", "slower"), [(0.5, "always"), (30.0, "never")])
def test_cost_follows_the_better_of_always_and_never(gb_per_s, slower):
    times = {}
    for load in ("always", "never", "cost"):
        engine = priced(f"cache/load={load}", f"cache.tiers.gb_per_s={gb_per_s}")
        for block in range(3):
            first_token_s(engine, block)
        times[load] = sum(first_token_s(engine, block) for block in range(3))
        facts = engine.core.loads.policy.facts()
        regret_s = facts["regret_of_loading_s"] + facts["regret_of_computing_s"]
        assert (regret_s > 0.01) == (load == slower)
        engine.close()
    assert times["cost"] == pytest.approx(min(times.values()), rel=0.05)
    assert times[slower] > 1.5 * times["cost"]


def test_a_load_longer_than_the_timeout_is_given_up_and_costs_no_more():
    engine = priced("cache/load=always", "cache.load_timeout_s=0.01")
    for block in (1, 2):
        first_token_s(engine, block)
    assert first_token_s(engine, 1) <= COMPUTED_S + 0.0101
    assert engine.core.cache.tiers.counters.given_up == 1
    engine.close()


def test_requests_for_the_same_pages_share_one_load():
    engine = priced("cache/load=always")
    for block in (1, 2):
        first_token_s(engine, block)
    for index in range(3):
        ask(engine, 1, index)
    records = ended(engine)
    assert [record.cached_tokens for record in records] == [PAGES * PAGE_SIZE] * 3
    assert engine.core.cache.tiers.counters.loaded == PAGES
    engine.close()


def test_what_a_slower_store_has_is_found_behind_a_full_one():
    engine = priced(
        "cache/load=always", "cache.tiers.capacity_mib=20", "cache/tiers/below=priced",
        "cache.tiers.below.gb_per_s=1",
    )  # fmt: skip
    for block in (1, 2):
        first_token_s(engine, block)
    near, far = engine.core.loads.stores
    assert near.used_bytes() <= 20 << 20 < far.used_bytes()
    slow_s = LATENCY_S + PAGES * PAGE_SIZE * KV_BYTES / 1e9 + STEP_S + PAGE_SIZE * TOKEN_S
    assert first_token_s(engine, 1) == pytest.approx(slow_s, rel=0.02)
    engine.close()
