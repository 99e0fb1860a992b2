"""Page accounts through an engine's life: growth, windows, overlap, pools that are just enough."""

import pytest

from interlock.core.request import FinishReason, Status
from tests.engine.serving import Client, asking, build, outputs, overlapping, serve, solo


@pytest.mark.parametrize("prompt", [3, 4, 5])
@pytest.mark.parametrize("allocator", ["paged", "contiguous"])
def test_the_last_token_needs_no_page(prompt, allocator):
    entries = prompt + 5 - 1
    pages = -(-entries // 4)
    records = serve(build(num_pages=pages, index="none", allocator=allocator), asking(0, prompt, 5))
    assert records[0].status is Status.FINISHED
    assert len(records[0].output_token_ids) == 5
    assert records[0].preemptions == 0


@pytest.mark.parametrize("index", ["none", "radix", "block_hash"])
def test_a_pool_that_is_just_enough_changes_no_token(model_of, index):
    request = asking(0, 4, 5)
    (right,) = solo(model_of(), [request]).values()
    for pages in (3, 2):
        engine = build(model_of(), num_pages=pages, index=index)
        records = serve(engine, request)
        assert records[0].output_token_ids == right
        assert records[0].preemptions == 0


def test_a_request_one_page_too_long_is_refused_with_the_numbers():
    records = serve(build(num_pages=2), asking(0, 5, 5), asking(1, 4, 5))
    assert records[0].status is Status.FAILED
    assert records[0].error is not None
    assert "needs 3 pages of 4 tokens for 9 cached tokens" in records[0].error
    assert "pool has 2 (cache.num_pages)" in records[0].error
    assert records[1].status is Status.FINISHED


@pytest.mark.parametrize("allocator", ["paged", "contiguous"])
def test_a_prompt_longer_than_the_pool_is_refused_and_short_ones_go_on(allocator):
    client = Client(build(num_pages=10, max_model_len=100, index="none", allocator=allocator))
    client.submit(asking(0, 60), *(asking(i, 4) for i in range(1, 6)))
    records = client.finish()
    assert records[0].status is Status.FAILED
    assert "60" in str(records[0].error)
    assert "pool has 10" in str(records[0].error)
    assert all(records[i].finish_reason is FinishReason.LENGTH for i in range(1, 6))


@pytest.mark.parametrize("index", ["none", "radix", "block_hash"])
def test_two_requests_that_share_window_pages_give_all_back(model_of, index):
    model = model_of("hybrid")
    prompt = asking(0, 13).prompt_token_ids
    requests = [
        asking(0, prompt, 20, temperature=1.0, seed=1),
        asking(1, prompt, 20, temperature=1.0, seed=2),
        asking(2, prompt, 20, arrival_s=1e-9, temperature=1.0, seed=3),
    ]
    engine = build(model, index=index, num_pages=40)
    window = engine.core.cache.pools[1]
    client = Client(engine)
    client.submit(*requests)
    most_held = 0
    while engine.has_work:
        client.step()
        most_held = max(most_held, window.held)
    records = client.finish()
    assert outputs(records) == solo(model, requests)
    # Window 8 in pages of 4: at most 3 pages of each table are visible to a decoding request,
    # a prompt of 13 tokens in one step adds what it wrote.
    assert most_held <= 3 * 5
    if index != "none":
        assert engine.core.cache.counters.shared_duplicates + records[2].cached_tokens > 0


def test_pages_behind_a_window_are_freed_while_the_request_runs(model_of):
    engine = build(model_of("hybrid"), index="none", num_pages=32)
    client = Client(engine)
    client.submit(asking(0, 9, 40))
    held = []
    while engine.has_work:
        client.step()
        held.append(engine.core.cache.pools[1].held)
    assert len(client.tokens[0]) == 40
    assert max(held[3:]) <= 3
    client.finish()


@pytest.mark.parametrize("index", ["none", "radix", "block_hash"])
def test_a_hundred_short_requests_leave_the_pool_exactly_whole(index):
    for steps_of in (lambda engine: engine, overlapping):
        client = Client(steps_of(build(num_pages=12, index=index, budget_tokens=16)))
        for index_of in range(100):
            prompt = asking(index_of % 3, 6).prompt_token_ids
            client.submit(asking(index_of, prompt, 1 + index_of % 3))
            client.step()
        records = client.finish()
        assert all(r.finish_reason is FinishReason.LENGTH for r in records.values())


def test_overlapping_steps_hold_different_requests_and_change_no_token():
    requests = [asking(i, 3 + i, 6, temperature=1.0) for i in range(8)]
    plain = build(budget_tokens=4, num_pages=20)
    right = outputs(serve(plain, *requests))
    twin = build(budget_tokens=4, num_pages=20)
    client = Client(overlapping(twin))
    client.submit(*requests)
    most_in_flight = 0
    while client.engine.has_work:
        client.step()
        flying = [live for live in twin.core.queues.running.values() if live.in_flight]
        most_in_flight = max(most_in_flight, len(flying))
    assert outputs(client.finish()) == right
    assert most_in_flight > 0, "no step was in flight beside another"


@pytest.mark.parametrize("index", ["none", "radix"])
def test_pages_of_a_request_aborted_in_flight_return_when_its_step_does(index):
    engine = build(budget_tokens=4, num_pages=20, index=index)
    client = Client(overlapping(engine))
    client.submit(*(asking(i, 6, 8) for i in range(4)))
    aborted = []
    while client.engine.has_work:
        client.step()
        flying = [live for live in engine.core.queues.running.values() if live.in_flight]
        alive = [live for live in flying if not live.ended]
        if alive and len(aborted) < 3 and alive[0].request.index != 0:
            victim = alive[0]
            client.engine.abort(victim.id)
            client.engine.abort(victim.id)
            assert victim.holding is not None, "pages were freed under a running step"
            aborted.append(victim.request.index)
    records = client.finish()
    assert aborted
    for index_of, record in records.items():
        expected = FinishReason.ABORT if index_of in aborted else FinishReason.LENGTH
        assert record.finish_reason is expected


def test_rotary_tables_are_no_longer_than_a_request_can_be(model_of):
    whole, short = build(model_of()), build(model_of(), max_model_len=40)
    for engine, positions in ((whole, 512), (short, 40)):
        tables = engine.executor._decoder.tables
        assert {len(cos_PR) for cos_PR, _ in tables.values()} == {positions}
    request = asking(0, 9, 31)
    assert outputs(serve(short, request)) == outputs(serve(whole, request))


@pytest.mark.parametrize("cache", [{"index": "none"}, {"index": "radix"}, {"allocator": "buddy"}])
@pytest.mark.parametrize("spec", ["none", "eagle"])
def test_an_end_seen_while_another_step_is_in_flight_returns_every_slot_once(model_of, cache, spec):
    """One short prompt a hundred times, ended by its stop token: whole whenever idle."""
    model, prompt = model_of(), asking(0, 6).prompt_token_ids
    right = solo(model, [asking(0, prompt, 6, ignore_eos=True)])[0]
    stop = {"ignore_eos": True, "stop_token_ids": (right[3],)}
    end = right.index(right[3]) + 1
    engine = build(model, num_pages=12, budget_tokens=8, spec=spec, **cache)
    client, pool = Client(overlapping(engine)), engine.core.cache.pools[0]
    for round_ in range(20):
        client.submit(*(asking(5 * round_ + i, prompt, 6, **stop) for i in range(5)))
        while client.engine.has_work:
            client.step()
        assert pool.allocator.free_pages() + pool.cached == pool.num_pages
        assert pool.held == 0
    records = client.finish()
    assert len(records) == 100
    assert {tuple(record.output_token_ids) for record in records.values()} == {tuple(right[:end])}
    assert {record.finish_reason for record in records.values()} == {FinishReason.STOP}
