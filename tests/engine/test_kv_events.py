"""A consumer of an engine's events knows exactly what its cache holds, after every step."""

import json
from dataclasses import replace
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from interlock.conf.hydra_edge import compose
from interlock.core.assemble import assemble, build_engine
from interlock.core.registry import load_registry
from interlock.core.request import HashedPrompt, Request, SamplingParams
from interlock.core.testing.tiny_adapter import write_adapter
from interlock.driver.kv_replica import Replica, read_events
from interlock.driver.run import run
from interlock.plugins.cache.eviction import TTLConfig
from interlock.plugins.cache.tiering import PricedConfig
from interlock.plugins.executor import FixedConfig
from tests.engine.cached_content import Follower, walked
from tests.engine.serving import asking, build, configured, tokens
from tests.engine.tiers import base, drain, greedy, serve, tiered, tiny

POLICIES = st.sampled_from(
    ["lru", "fifo", "lfu", "length_aware", "s3fifo", "lruk", "arc", "cost_aware", "priority",
     TTLConfig(ttl_s=0.05)]
)  # fmt: skip
TRUNK = tokens(24, salt=3)
LONGEST = 40


@st.composite
def asked(draw):
    """Prompts that share beginnings, of three tenants, some with a second sample."""
    return [
        (
            draw(st.integers(0, 24)), draw(st.integers(1, 12)), draw(st.integers(1, 9)),
            draw(st.sampled_from(["", "", "a", "b"])), draw(st.sampled_from([1, 1, 2])),
            draw(st.sampled_from([0.0, 0.0, 0.03, 0.4])),
        )
        for _ in range(draw(st.integers(1, 9)))
    ]  # fmt: skip


@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    index=st.sampled_from(["radix", "block_hash"]),
    eviction=POLICIES,
    allocator=st.sampled_from(["paged", "buddy"]),
    page_size=st.sampled_from([1, 3, 4, 16]),
    spare_pages=st.integers(0, 6),
    tiers=st.sampled_from([None, None, 1.0, 0.001]),
    write=st.sampled_from(["through", "back"]),
    asks=asked(),
)
def test_events_alone_rebuild_the_index_after_every_step(
    index, eviction, allocator, page_size, spare_pages, tiers, write, asks
):
    choices = {}
    if tiers is not None:
        choices["tiers"] = PricedConfig(gb_per_s=tiers, capacity_mib=0.002)
    config = configured(
        index=index, eviction=eviction, allocator=allocator, page_size=page_size,
        num_pages=-(-(LONGEST - 1) // page_size) + spare_pages, max_requests=4, budget_tokens=24,
        max_model_len=LONGEST, executor=FixedConfig(kv_bytes_per_token=16), events="memory",
        **choices,
    )  # fmt: skip
    config = replace(config, cache=replace(config.cache, write=write))
    engine = build_engine(config)
    follower = Follower(engine)
    arrival_s = 0.0
    for number, (shared, own, length, tenant, n, delay_s) in enumerate(asks):
        arrival_s += delay_s
        prompt = (*TRUNK[:shared], *tokens(own, salt=number % 3))
        engine.submit(asking(number, prompt, length, arrival_s, tenant=tenant, n=n))
    for _ in engine.outputs():
        pass
    indexed = sum(map(len, walked(engine)))
    engine.close()
    came = follower.events("stored")
    came += [event for event in follower.events("moved") if event["to"] == "device"]
    went = [event for event in follower.events("removed") if event["medium"] == "device"]
    assert went.pop()["reason"] == "cleared"
    assert indexed == sum(len(e["keys"]) for e in came) - sum(len(e["keys"]) for e in went)
    assert follower.replica.pages == {}, "a closed engine has nothing"


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    kinds = ("gqa", "hybrid")
    return {kind: tiny(tmp_path_factory.mktemp("models"), kind) for kind in kinds}


@pytest.mark.parametrize(
    ("kind", "more"),
    [
        ("hybrid", ["cache=radix"]),
        ("hybrid", ["cache=block_hash"]),
        ("gqa", ["cache=radix", "spec=eagle", "spec.path={}/eagle"]),
        ("gqa", ["cache=block_hash", "spec=eagle", "spec.path={}/eagle"]),
        ("gqa", ["cache=radix", "cache.index.partial_pages=true"]),
    ],
)
def test_windows_and_rows_of_a_drafter_are_followed(models, kind, more):
    more = [one.format(models[kind]) for one in more]
    engine = assemble(base(models[kind], "cache.num_pages=14", "cache/events=memory", *more))
    follower = Follower(engine)
    for salt in (0, 1, 0, 2, 1, 3, 0):
        serve(engine, [tokens(29, salt), tokens(29, salt)])
    engine.close()
    assert follower.kinds() == {"namespace", "stored", "removed", "used"}
    ahead = {len(event["ahead_token_ids"]) for event in follower.events("stored")}
    assert ahead == {1 if "spec=eagle" in more else 0}


def test_adapters_are_namespaces_with_a_name_and_tenants_have_none(models, tmp_path):
    write_adapter(tmp_path / "one", models["gqa"], ("q_proj", "v_proj"))
    adapters = f"adapters=[{tmp_path / 'one'}]"
    streams = []
    for _ in range(2):
        engine = assemble(base(models["gqa"], adapters, "cache/events=memory"))
        follower = Follower(engine)
        for adapter, tenant in ((None, ""), ("one", ""), (None, "acme-corp"), ("one", "acme-corp")):
            engine.submit(Request(0, tokens(13), greedy(), tenant=tenant, adapter=adapter))
            for _ in engine.outputs():
                pass
        engine.close()
        assert "acme" not in json.dumps(follower.batches)
        streams.append(follower)
    spaces = [(one["adapter"], one["tenant"]) for one in streams[0].events("namespace")]
    assert spaces == [(None, False), ("one", False), (None, True), ("one", True)]
    first, second = (
        {key: e["namespace"] for e in one.events("stored") for key in e["keys"]} for one in streams
    )
    assert {first[key] for key in first if key in second} == {0, 1}, "the same in every process"
    assert len(first) == len(second) == 4 * sum(space == 0 for space in first.values())


@pytest.mark.parametrize("write", ["through", "back"])
@pytest.mark.parametrize("seed", [1, 2])
def test_faults_of_stores_leave_no_event_out(models, seed, write):
    engine, store = tiered(models["gqa"], f"cache.write={write}", "cache/events=memory")
    follower, dice = Follower(engine), Random(seed)
    store.fails = lambda _what, _key: dice.random() < 0.2
    for salt in (0, 1, 2, 0, 1, 2, 3, 0):
        serve(engine, [tokens(29, salt)])
    drain(engine)
    store.fails = lambda _what, _key: False
    serve(engine, [tokens(9, 7)])  # a step that tells what was drained
    drain(engine)
    follower.same()
    engine.close()
    kept, entered = engine.core.cache.tiers, len(store.entries)
    assert kept.counters.loaded > 0
    assert kept.counters.not_saved + kept.counters.missed > 0
    lost = [event for event in follower.events("removed") if event["reason"] == "lost"]
    known = len(follower.replica.tiers["memory"])
    assert entered - len(lost) <= known <= entered, "a read that fails counts as a loss"


def test_a_page_that_comes_back_from_a_tier_is_moved_and_not_stored(models):
    engine, _ = tiered(models["gqa"], "cache/events=memory")
    follower = Follower(engine)
    for salt in (0, 1, 2, 0):
        serve(engine, [tokens(29, salt)])
    drain(engine)
    engine.close()
    loaded = [event for event in follower.events("moved") if event["to"] == "device"]
    assert sum(len(event["keys"]) for event in loaded) == engine.core.cache.tiers.counters.loaded
    assert all(event["from"] == "memory" and event["stays"] for event in loaded)
    assert len(loaded[0]["token_ids"]) == len(loaded[0]["keys"]) * 4


def test_prompts_of_block_ids_have_words_in_place_of_tokens():
    engine = build(index="radix", events="memory", page_size=1)
    follower = Follower(engine)
    prompt = HashedPrompt((7, 8), 4, 7)
    engine.submit(Request(0, (), SamplingParams(max_tokens=1), hashed_prompt=prompt))
    for _ in engine.outputs():
        pass
    (stored,) = follower.events("stored")
    assert stored["token_ids"] is None
    assert stored["words"] == [28, 29, 30, 31, 32, 33, 34]


def test_a_batch_is_what_a_step_changed_and_says_where_pages_are():
    engine = build(index="radix", events="memory", num_pages=20)
    events = engine.watches["cache/events"]
    engine.submit(asking(0, 13, 3))
    while engine.has_work:
        engine.step()
    batches = events.take()
    assert [batch.step for batch in batches] == [0, 2]
    assert [batch.pools for batch in batches] == [[[16, 0, 4, 0]], [[17, 3, 0, 0]]]
    assert [batch.seq for batch in batches] == [0, 2]
    assert list(events) == events.take() == []


def test_nobody_is_told_without_a_stream():
    engine = build(index="radix")
    assert engine.watches == {}
    assert engine.core.cache.runs.watches == []


def test_a_missing_batch_is_noticed():
    engine = build(index="radix", events="memory")
    events = engine.watches["cache/events"]
    replica = Replica(events.header())
    for index in range(2):
        engine.submit(asking(index, 9, 6))
        for _ in engine.outputs():
            pass
    batches = [batch.line() for batch in events.take()]
    replica.apply(batches[0])
    with pytest.raises(Exception, match="are missing before step"):
        replica.apply(batches[-1])


def test_the_file_of_a_run_that_was_killed_ends_with_its_last_whole_line(tmp_path):
    path = tmp_path / "kv_events.jsonl"
    engine = assemble(
        ["executor=fixed", "cache/events=jsonl", f"cache.events.path={path}", "cache.page_size=4"]
    )
    for index in range(3):
        engine.submit(asking(index, 9, 6))
    for _ in engine.outputs():
        pass
    engine.close()
    whole = list(read_events(path))
    path.write_text(path.read_text()[:-20])
    assert list(read_events(path)) == whole[:-1]
    replica = Replica(whole[0])
    for batch in whole[1:-1]:
        replica.apply(batch)
    assert len(replica.pages) == engine.core.cache.index.num_pages()


def test_a_run_leaves_its_events_in_its_folder(tmp_path):
    overrides = [
        "executor=fixed", "workload=synthetic", "workload.num_requests=6", "progress=false",
        "cache/events=jsonl", "cache.page_size=4", "workload.prompt_tokens=20",
    ]  # fmt: skip
    assert run(compose(overrides, load_registry()), tmp_path, overrides) == 0
    header, *batches = read_events(tmp_path / "kv_events.jsonl")
    replica = Replica(header)
    for batch in batches:
        replica.apply(batch)
    manifest = json.loads((tmp_path / "run.json").read_text())
    assert manifest["components"]["cache/events"]["class"].endswith("FileEvents")
    told = manifest["counters"]["cache/events"]
    assert 0 < told["events"] == replica.seq - 1, "the last one says that the engine was closed"
    assert told["batches"] == len(batches) - 1
    assert "cache/events" not in manifest["inert"]


@pytest.mark.parametrize(
    ("path", "lands"), [(None, "run/kv_events.jsonl"), ("mine.jsonl", "mine.jsonl")]
)
def test_a_path_is_from_the_working_directory_and_none_is_a_file_of_the_run(
    tmp_path, monkeypatch, path, lands
):
    monkeypatch.chdir(tmp_path)
    given = [] if path is None else [f"cache.events.path={path}"]
    config = compose(["executor=fixed", "cache/events=jsonl", *given])
    build_engine(config, folder=tmp_path / "run").close()
    assert (tmp_path / lands).stat().st_size > 0
