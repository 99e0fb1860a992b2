"""A cache that is saved and loaded again serves as if its engine had never been restarted."""

from random import Random

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from interlock.core.assemble import build_engine
from interlock.core.testing.integrity import check_engine
from interlock.plugins.cache.eviction import LFUConfig, LRUKConfig, TTLConfig
from interlock.plugins.cache.watches import DirectoryConfig
from interlock.plugins.executor import FixedConfig
from tests.engine.cached_content import drained, walked
from tests.engine.serving import asking, configured, tokens

POLICIES = st.sampled_from(
    ["lru", "fifo", "lfu", LFUConfig(aging="dynamic"), "length_aware", "s3fifo", "lruk",
     LRUKConfig(k=3, correlated_s=0.01), "arc", "cost_aware", "priority", TTLConfig(ttl_s=0.5)]
)  # fmt: skip
TICKS = FixedConfig(step_ms=7.8125, token_ms=0.244140625)
"""Steps of 2**-7 seconds and 2**-12 a token: sums are exact, so shifted times compare alike."""
LONGEST = 40


def wave(dice, count):
    """Requests that share beginnings: (trunk, shared, own, max_tokens, tenant, delay_s)."""
    return [
        (
            dice.randrange(5), dice.choice([0, 8, 16, 24]), dice.randint(1, 10),
            dice.randint(1, 6), dice.choice(["", "", "", "a"]), dice.choice([0.0, 0.0, 0.25]),
        )
        for _ in range(count)
    ]  # fmt: skip


def serve_wave(engine, requests, first_index):
    """What a wave gave: hits and tokens, by request."""
    arrival_s, records = engine.clock.now(), {}
    for index, one in enumerate(requests, start=first_index):
        trunk, shared, own, length, tenant, delay_s = one
        arrival_s += delay_s
        prompt = (*tokens(24, salt=50 + trunk)[:shared], *tokens(own, salt=index % 4))
        engine.submit(asking(index, prompt, length, arrival_s, tenant=tenant))
    while engine.has_work:
        for output in engine.step():
            if output.finished is not None:
                one = output.finished
                records[one.index] = one.cached_tokens, one.preemptions, one.output_token_ids
        check_engine(engine)
    return records


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    indexes=st.sampled_from(
        [("radix", "radix"), ("block_hash", "block_hash"), ("radix", "block_hash")]
    ),
    eviction=POLICIES,
    allocator=st.sampled_from(["paged", "buddy"]),
    page_size=st.sampled_from([1, 3, 4, 8]),
    spare_tokens=st.sampled_from([0, 30, 60, 100]),
    seed=st.integers(0, 10**6),
)
def test_hits_are_those_of_the_engine_that_was_never_restarted(
    tmp_path_factory, indexes, eviction, allocator, page_size, spare_tokens, seed
):
    folder, dice = tmp_path_factory.mktemp("snapshot"), Random(seed)

    def engine(index, **options):
        return build_engine(
            configured(
                index=index, eviction=eviction, allocator=allocator, page_size=page_size,
                num_pages=-(-(LONGEST + spare_tokens) // page_size), max_requests=4,
                budget_tokens=24, max_model_len=LONGEST, executor=TICKS,
                snapshot=DirectoryConfig(**options),
            )
        )  # fmt: skip

    first = engine(indexes[0], save=str(folder))
    serve_wave(first, wave(dice, 12), 0)
    first.watches["cache/snapshot"].save(folder)
    second = engine(indexes[1], load=str(folder))
    check_engine(second)
    assert walked(second) == walked(first)
    requests = wave(dice, 12)
    assert serve_wave(second, requests, 100) == serve_wave(first, requests, 100)
    assert drained(second) == drained(first)


@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    eviction=st.sampled_from(["lru", "fifo", "lfu", "length_aware", "cost_aware", "lruk"]),
    seed=st.integers(0, 10**6),
    fewer=st.integers(1, 20),
)
def test_what_fits_is_what_is_left_after_eviction(tmp_path_factory, eviction, seed, fewer):
    folder, many = tmp_path_factory.mktemp("snapshot"), 60

    def engine(num_pages, **options):
        return build_engine(
            configured(
                index="radix", eviction=eviction, num_pages=num_pages, max_model_len=LONGEST,
                executor=TICKS, snapshot=DirectoryConfig(**options),
            )
        )  # fmt: skip

    first = engine(many, save=str(folder))
    serve_wave(first, wave(Random(seed), 10), 0)
    first.watches["cache/snapshot"].save(folder)
    kept = first.core.cache.index.num_pages() - fewer
    second = engine(max(kept, 10), load=str(folder))
    first.core.cache.runs.evict(first.core.cache.index.num_pages() - max(kept, 10))
    assert walked(second) == walked(first)
