"""Prefix hits inside the engine: what is reused, what must not be, and who may share."""

import dataclasses
import shutil

import pytest

from interlock.core.testing.integrity import check_cache
from interlock.plugins.cache.block_hash import BlockHashIndex
from interlock.plugins.cache.chain_keys import DigestKeys
from interlock.plugins.speculative.heads.options import EagleConfig
from tests.engine.serving import (
    Client,
    asking,
    build,
    outputs,
    registry_with,
    serve,
    solo,
    tokens,
)

INDEXES = ("radix", "block_hash")
every_index = pytest.mark.parametrize("index", INDEXES)


@every_index
def test_a_prompt_of_whole_pages_sent_twice_computes_at_least_one_token(model_of, index):
    engine = build(model_of(), index=index, page_size=16, num_pages=16)
    prompt = tokens(32, salt=1)
    longer = (*prompt, 5)
    first = serve(engine, asking(0, prompt, 5))[0]
    computed = engine.core.ledger.prompt_computed
    second = serve(engine, asking(1, prompt, 5))[1]
    again = engine.core.ledger.prompt_computed - computed
    assert 1 <= again <= 16
    assert again == 32 - second.cached_tokens
    assert second.output_token_ids == first.output_token_ids
    third = serve(engine, asking(2, longer, 5))[2]
    assert third.cached_tokens == 32
    assert engine.core.ledger.prompt_computed - computed - again == 1
    assert [third.output_token_ids] == list(solo(model_of(), [asking(2, longer, 5)]).values())


@every_index
@pytest.mark.parametrize("kind", ["gqa", "hybrid"])
def test_an_evicted_prompt_is_computed_again_and_right(model_of, index, kind):
    engine = build(model_of(kind), index=index, num_pages=4)
    x, y = tokens(12, salt=1), tokens(16, salt=2)
    first = serve(engine, asking(0, x, 1))[0]
    serve(engine, asking(1, y, 1))
    assert engine.core.cache.counters.evicted_pages == 3
    again = serve(engine, asking(2, x, 1))[2]
    assert again.cached_tokens == 0
    assert again.output_token_ids == first.output_token_ids
    longest = serve(engine, asking(3, x, 5))[3]
    assert longest.output_token_ids == solo(model_of(kind), [asking(3, x, 5)])[3]


@every_index
def test_a_prompt_shorter_than_a_page_is_never_reused(index):
    engine = build(index=index, page_size=16, num_pages=8)
    cache = engine.core.cache
    short, long = tokens(5, salt=1), tokens(20, salt=1)
    serve(engine, asking(0, short, 1))
    assert cache.pools[0].cached == 0
    serve(engine, asking(1, long, 1))
    assert cache.pools[0].cached == 1, "the four odd tokens stayed"
    assert cache.runs.policy.num_candidates() == 1
    assert serve(engine, asking(2, short, 1))[2].cached_tokens == 0
    check_cache(cache, [])


@every_index
@pytest.mark.parametrize("spec", ["none", "eagle"])
def test_equal_prompts_in_one_batch_end_up_on_one_copy(model_of, index, spec):
    """The copy is freed while its owner goes on; a third request writes into the freed pages."""
    model = model_of()
    prompt = tokens(13, salt=3)
    twins = [asking(i, prompt, 14, temperature=1.0, seed=i, ignore_eos=True) for i in range(2)]
    third = asking(2, 14, 12, ignore_eos=True)
    engine = build(model, index=index, num_pages=15, spec=spec)
    cache = engine.core.cache
    client = Client(engine)
    client.submit(*twins)
    client.step()
    holdings = [live.holding for live in engine.core.queues.running.values()]
    rows = [cache.tables[0][h.slot, : h.counts[0]].tolist() for h in holdings]
    assert cache.counters.shared_duplicates == 3
    assert rows[0][:3] == rows[1][:3]
    assert cache.pools[0].refs[rows[0][:3]].tolist() == [2, 2, 2]
    assert set(rows[0][3:]).isdisjoint(rows[1][3:])
    client.submit(third)
    client.step()
    (newest,) = (h for h in _holdings(engine) if h not in holdings)
    assert set(cache.tables[0][newest.slot, : newest.counts[0]].tolist()).isdisjoint(
        rows[0] + rows[1]
    )
    assert outputs(client.finish()) == solo(model, [*twins, third])


def _holdings(engine):
    return [live.holding for live in engine.core.queues.running.values()]


@every_index
def test_a_decoding_requests_pages_are_shared_while_it_runs(model_of, index):
    model = model_of()
    first = asking(0, tokens(8, salt=5), 30, ignore_eos=True)
    right = solo(model, [first])[0]
    engine = build(model, index=index)
    client = Client(engine)
    client.submit(first)
    client.step(13)
    assert len(client.tokens[0]) == 13
    follower = asking(1, (*first.prompt_token_ids, *right[:12]), 6, ignore_eos=True)
    client.submit(follower)
    records = client.finish()
    assert records[1].cached_tokens == 16
    assert records[1].output_token_ids == right[12:18]
    assert records[0].output_token_ids == right


@every_index
@pytest.mark.parametrize("shared", [False, True])
def test_tenants_reuse_each_others_pages_only_when_allowed(index, shared):
    engine = build(index=index, share_tenants=shared)
    prompt = tokens(17, salt=1)
    hits = [
        serve(engine, asking(i, prompt, 2, tenant=tenant))[i].cached_tokens
        for i, tenant in enumerate(["a", "b", "", "a", "b", ""])
    ]
    assert hits == ([0, 16, 16, 16, 16, 16] if shared else [0, 0, 0, 16, 16, 16])


@every_index
def test_equal_prompts_of_two_tenants_in_one_batch_stay_apart(index):
    engine = build(index=index)
    prompt = tokens(17, salt=1)
    serve(engine, asking(0, prompt, 2, tenant="a"), asking(1, prompt, 2, tenant="b"))
    assert engine.core.cache.counters.shared_duplicates == 0
    assert engine.core.cache.pools[0].cached == 8


def test_two_models_of_one_name_share_no_key_and_give_their_own_tokens(model_of, tmp_path):
    prompt = asking(0, tokens(17, salt=1), 6)
    salts = set()
    for seed in (0, 1):
        directory = shutil.copytree(model_of(seed=seed), tmp_path / str(seed) / "same")
        (right,) = solo(directory, [prompt]).values()
        engine = build(directory, index="radix")
        assert engine.resolution.model.name == "same"
        for index in (0, 1):
            request = dataclasses.replace(prompt, index=index)
            assert serve(engine, request)[index].output_token_ids == right
        salts |= {run.salt for run in engine.core.cache.index.runs()}
    assert len(salts) == 2


def test_new_weights_under_the_same_path_meet_no_page_of_the_old_ones(model_of, tmp_path):
    directory = tmp_path / "model"
    request = asking(0, tokens(17, salt=1), 6)
    for seed in (0, 1):
        shutil.rmtree(directory, ignore_errors=True)
        shutil.copytree(model_of(seed=seed), directory)
        record = serve(build(directory, index="radix"), request)[0]
        assert record.cached_tokens == 0
        assert record.output_token_ids == solo(model_of(seed=seed), [request])[0]


def test_a_key_function_that_collides_changes_no_token(model_of):
    def weak(parent, row):
        return bytes([(sum(parent) + sum(row)) % 3])

    registry = registry_with(
        "index", lambda _context: BlockHashIndex(DigestKeys(weak, 1, trusted=False))
    )
    requests = [asking(i, 9 + i % 4, 3) for i in range(10)]
    engine = build(model_of(), registry, index="ours", num_pages=128, max_requests=16)
    first = outputs(serve(engine, *requests))
    repeated = [dataclasses.replace(r, index=r.index + 10) for r in requests]
    second = serve(engine, *repeated)
    assert list(outputs(second).values()) == list(first.values())
    assert first == solo(model_of(), requests)
    assert all(record.cached_tokens >= 8 for record in second.values())


@every_index
def test_a_hybrid_models_hit_needs_the_pages_of_its_window_too(model_of, index):
    """Window pages left idle may go on their own; then a hit is shorter, never wrong."""
    model = model_of("hybrid")
    prompt = tokens(29, salt=2)
    engine = build(model, index=index, num_pages=24)
    cache = engine.core.cache
    serve(engine, asking(0, prompt, 2))
    assert cache.pools[0].cached == 7
    hit = serve(engine, asking(1, prompt, 6))[1]
    assert hit.cached_tokens == 28
    idle = cache.pools[1].cached
    cache.windows[1].release_oldest(idle)
    assert cache.pools[1].cached == 0
    missed = serve(engine, asking(2, prompt, 6))[2]
    assert missed.cached_tokens == 0
    (right,) = solo(model, [asking(3, prompt, 6)]).values()
    assert hit.output_token_ids == missed.output_token_ids == right


def test_no_index_keeps_nothing(model_of):
    engine = build(model_of(), index="none", spec=EagleConfig(num_drafts=2))
    prompt = tokens(17, salt=1)
    for i in range(2):
        assert serve(engine, asking(i, prompt, 3))[i].cached_tokens == 0
    assert engine.core.cache.pools[0].cached == 0
