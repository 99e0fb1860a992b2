"""Several samples of one prompt: each is what it would be alone, over pages that they share."""

import dataclasses

import pytest

from interlock.core.capabilities import SharesPages
from interlock.core.request import FinishReason, Status
from interlock.core.streams import sample_seed
from interlock.plugins.cache.paged import PagedAllocator
from interlock.plugins.speculative import NgramConfig
from interlock.plugins.speculative.heads.options import EagleConfig
from tests.engine.serving import (
    Client,
    Unnamed,
    asking,
    build,
    outputs,
    overlapping,
    registry_with,
    serve,
    solo,
)

CACHES = [
    {"allocator": "contiguous", "index": "none"},
    {"allocator": "paged", "index": "none"},
    {"allocator": "paged", "index": "radix"},
    {"allocator": "paged", "index": "block_hash"},
]
LENGTHS = [1, 4, 5, 11, 12, 21]
WILD = {"temperature": 1.0, "ignore_eos": True}


def key(index, sample):
    return (index, sample) if sample else index


def alone(model, request):
    """Every sample as a request of its own, run alone on the reference composition."""
    found = {}
    for sample in range(request.sampling.samples):
        seed = sample_seed(request.sampling.seed, sample)
        sampling = dataclasses.replace(request.sampling, n=1, best_of=None, seed=seed)
        one = dataclasses.replace(request, sampling=sampling, arrival_s=0.0)
        (tokens_of,) = solo(model, [one]).values()
        found[key(request.index, sample)] = tokens_of
    return found


@pytest.fixture(scope="module")
def right(model_of):
    found = {}
    for kind in ("gqa", "hybrid"):
        for index, length in enumerate(LENGTHS):
            request = asking(index, length, 24, n=3, seed=7 + index, **WILD)
            found[kind] = found.get(kind, {}) | alone(model_of(kind), request)
    return found


def requests(max_tokens=24):
    return [
        asking(index, length, max_tokens, n=3, seed=7 + index, **WILD)
        for index, length in enumerate(LENGTHS)
    ]


@pytest.mark.parametrize("cache", CACHES, ids=lambda cache: "-".join(cache.values()))
@pytest.mark.parametrize("spec", ["none", "eagle", "ngram"])
@pytest.mark.parametrize("kind", ["gqa", "hybrid"])
def test_every_sample_has_the_tokens_it_has_alone(model_of, right, kind, spec, cache):
    drafter = {"none": "none", "eagle": EagleConfig(num_drafts=3), "ngram": NgramConfig()}[spec]
    engine = build(
        model_of(kind), budget_tokens=16, num_pages=26, max_requests=7, spec=drafter, **cache
    )
    records = serve(engine, *requests())
    assert outputs(records) == right[kind]
    assert len({tuple(found) for found in outputs(records).values()}) == len(records)
    forked = [record for record in records.values() if record.shared_tokens]
    assert bool(forked) == (cache["allocator"] == "paged")
    preempted = engine.core.queues.counters.preemptions > 0
    assert preempted == (cache["allocator"] == "paged")


def test_forks_compute_one_prompt_token_each_and_share_the_rest(model_of):
    """Five samples of a prompt of 9 full pages and 3 tokens: one prefill, four more tokens."""
    engine = build(model_of(), index="none", page_size=4, num_pages=40)
    client = Client(engine)
    client.submit(asking(0, 39, 6, n=5, seed=3, **WILD))
    client.step(2)
    assert engine.core.queues.counters.admissions == 5
    pool = engine.core.cache.pools[0]
    assert pool.held == 9 + 5
    assert (pool.refs == 5).sum() == 9
    records = client.finish()
    assert engine.core.ledger.prompt_computed == 39 + 4
    assert [record.shared_tokens for record in records.values()] == [0, 38, 38, 38, 38]
    assert engine.core.cache.counters.hits == 0


def test_a_prompt_that_ends_with_its_page_needs_no_copy(model_of):
    engine = build(model_of(), index="none", page_size=4)
    copies = []
    execute = engine.executor.execute

    def watched(plan):
        copies.extend(plan.batch.copies)
        return execute(plan)

    engine.executor.execute = watched
    serve(engine, asking(0, 9, 4, n=3))
    assert not copies
    serve(engine, asking(1, 10, 4, n=3))
    assert len(copies) == 2


def test_decoding_far_past_a_window_after_a_fork_gives_every_page_back(model_of):
    """Window 8, pages of 4: shared window pages fall out of one table after the other."""
    model = model_of("hybrid")
    for cache in CACHES[1:]:
        engine = build(model, page_size=4, num_pages=60, **cache)
        free = [pool.allocator.free_pages() for pool in engine.core.cache.pools]
        for index, length in enumerate((9, 10, 11, 12)):
            request = asking(index, length, 28, n=2, seed=7, **WILD)
            client = Client(engine)
            client.submit(request)
            records = client.finish()
            assert records[index, 1].shared_tokens == length - 1
            assert outputs(records) == alone(model, request)
        for pool, before in zip(engine.core.cache.pools, free, strict=True):
            assert pool.allocator.free_pages() + pool.cached == before


def test_a_sample_waits_for_a_slot_and_still_finds_the_pages_of_its_siblings_windows(model_of):
    """The first running sample keeps what later ones start from, past its own window."""
    stops = tuple(range(2, 8))
    request = asking(0, 21, 24, n=6, seed=2, stop_token_ids=stops, **WILD)
    engine = build(model_of("hybrid"), index="none", max_requests=2, num_pages=40)
    records = serve(engine, request)
    assert outputs(records) == alone(model_of("hybrid"), request)
    assert [records[key(0, sample)].shared_tokens for sample in range(6)] == [0, *[20] * 5]
    assert engine.core.ledger.peak_running == 2


@pytest.mark.parametrize(("max_requests", "window_pages"), [(1, 6), (2, 11)])
def test_windows_kept_for_siblings_are_given_up_when_pages_run_short(
    model_of, max_requests, window_pages
):
    """A window of 8 and steps of 8 need 5 pages of 4; keeping all that siblings could use, 20."""
    sizes = iter((90, window_pages))  # of the two tables, after a look at what an allocator is
    registry = registry_with(
        "allocator",
        lambda context: PagedAllocator(1 if context.num_pages == 1 else next(sizes)),
        provides=lambda _config, _model: (SharesPages(),),
    )
    asked = [asking(0, 21, 60, n=3, seed=5, **WILD), asking(1, 9, 40, seed=6, **WILD)]
    engine = build(
        model_of("hybrid"), registry, allocator=Unnamed(), index="none",
        max_requests=max_requests, budget_tokens=8,
    )  # fmt: skip
    records = serve(engine, *asked)
    assert outputs(records) == alone(model_of("hybrid"), asked[0]) | alone(
        model_of("hybrid"), asked[1]
    )
    assert not engine.core.queues.counters.preemptions


def test_more_samples_than_slots_take_turns(model_of):
    for cache in CACHES:
        request = asking(0, 6, 5, n=9, seed=2, **WILD)
        engine = build(model_of(), max_requests=2, num_pages=6, **cache)
        assert outputs(serve(engine, request)) == alone(model_of(), request)
        assert engine.core.ledger.peak_running <= 2


def test_a_sample_that_can_never_fit_is_refused_in_one_record():
    records = serve(build(num_pages=3), asking(0, 8, 6, n=4), asking(1, 8, 4, n=4))
    assert "needs 4 pages" in records[0].error
    assert [key_ for key_ in records if key_ != 0] == [1, (1, 1), (1, 2), (1, 3)]


@pytest.mark.parametrize("cache", CACHES, ids=lambda cache: "-".join(cache.values()))
@pytest.mark.parametrize("overlap", [False, True])
def test_aborting_a_request_ends_its_samples_wherever_they_are(model_of, right, cache, overlap):
    """Stop one early, then abort the rest: one final record each, the pages back in one step."""
    wanted = asking(3, LENGTHS[3], 24, n=3, seed=10, **WILD)
    stop = next(
        t for t in right["gqa"][3] if t not in right["gqa"][3, 1][:8] + right["gqa"][3, 2][:8]
    )
    early = right["gqa"][3].index(stop)
    stopping = dataclasses.replace(wanted.sampling, stop_token_ids=(stop,))
    for moment in range(12):
        engine = build(model_of(), budget_tokens=6, num_pages=24, max_requests=4, **cache)
        client = Client(overlapping(engine) if overlap else engine)
        client.submit(dataclasses.replace(wanted, sampling=stopping), asking(9, 5, 20, **WILD))
        client.step(moment)
        client.abort(3)
        client.step(1)
        records = client.records
        assert (
            not any(live.request.index == 3 for live in engine.core.queues.running.values())
            or overlap
        )
        for sample in range(3):
            record = records[key(3, sample)]
            whole = right["gqa"][key(3, sample)]
            assert record.output_token_ids == whole[: len(record.output_token_ids)]
            if record.finish_reason is FinishReason.STOP:
                assert len(record.output_token_ids) == early + 1
            else:
                assert record.finish_reason is FinishReason.ABORT
        client.finish()


def test_samples_that_end_at_different_steps_all_come_out(model_of, right):
    wanted = asking(3, LENGTHS[3], 24, n=3, seed=10, **WILD)
    stop = right["gqa"][3][1]
    request = dataclasses.replace(
        wanted, sampling=dataclasses.replace(wanted.sampling, stop_token_ids=(stop,))
    )
    for _ in range(2):
        records = serve(build(model_of(), index="radix"), request)
        ends = {}
        for sample in range(3):
            whole = right["gqa"][key(3, sample)]
            cut = whole[: whole.index(stop) + 1] if stop in whole else whole
            assert records[key(3, sample)].output_token_ids == cut
            ends[sample] = len(cut)
        assert len(set(ends.values())) > 1


def test_an_aborted_request_of_the_future_has_a_record_for_each_sample():
    client = Client(build())
    client.submit(asking(0, 5, 3, n=3, arrival_s=50.0))
    client.abort(0)
    records = client.finish()
    assert [r.finish_reason for r in records.values()] == [FinishReason.ABORT] * 3


def test_a_bad_first_sample_lets_the_others_go_on():
    """A record with an error, and the samples that waited for it start by themselves."""
    engine = build(index="none", budget_tokens=4)
    execute = engine.executor.execute

    def failing(plan):
        result = execute(plan)
        if plan.step_id == 1:
            result.errors[0] = "broken"
        return result

    engine.executor.execute = failing
    records = serve(engine, asking(0, 10, 3, n=3))
    assert [r.status for r in records.values()] == [Status.FAILED, Status.FINISHED, Status.FINISHED]


def best(model, request):
    """Sample indices by falling mean log-probability, from samples run without a choice."""
    sampling = request.sampling
    everyone = dataclasses.replace(sampling, n=sampling.samples, best_of=None, logprobs=0)
    records = serve(build(model), dataclasses.replace(request, sampling=everyone))
    means = [sum(one.chosen for one in r.logprobs) / len(r.logprobs) for r in records.values()]
    return sorted(range(len(means)), key=lambda sample: -means[sample]), records


@pytest.mark.parametrize("cache", CACHES, ids=lambda cache: "-".join(cache.values()))
def test_best_of_gives_out_the_samples_of_the_highest_mean_log_probability(model_of, cache):
    request = asking(0, 9, 12, n=2, best_of=5, seed=4, temperature=1.0)
    order, everyone = best(model_of(), request)
    engine = build(model_of(), max_requests=3, **cache)
    client = Client(engine)
    client.submit(request)
    while not client.records:
        assert not any(client.step().values()) or client.records
    records = client.finish()
    kept = [sample for sample in range(5) if not records[key(0, sample)].dropped]
    assert kept == sorted(order[:2])
    assert outputs(records) == outputs(everyone)
    assert not any(record.logprobs for record in records.values())
    for record in records.values():
        assert record.status is Status.FINISHED
        assert record.chunk_sizes == ([] if record.dropped else [len(record.output_token_ids)])
    assert len({record.finished_s for record in records.values()}) == 1
    assert engine.core.ledger.decode == sum(len(r.output_token_ids) - 1 for r in records.values())


def test_equal_samples_are_chosen_by_index(model_of):
    engine = build(model_of())
    execute = engine.executor.execute

    def flat(plan):
        result = execute(plan)
        for row, found in result.logprobs.items():
            result.logprobs[row] = tuple(dataclasses.replace(one, chosen=-1.0) for one in found)
        return result

    engine.executor.execute = flat
    records = serve(engine, asking(0, 9, 5, n=1, best_of=3, logprobs=1, **WILD))
    assert [record.dropped for record in records.values()] == [False, True, True]
    assert [len(one.top) for one in records[0].logprobs] == [1] * 5


def test_the_choice_among_samples_of_the_same_tokens_does_not_hang_on_last_bits(model_of):
    """A matrix product's last bits depend on the batch, so later samples can seem likelier."""
    engine = build(model_of())
    execute = engine.executor.execute

    def rounded(plan):
        result = execute(plan)
        for row, found in result.logprobs.items():
            number = plan.batch.request_ids[row]
            result.logprobs[row] = tuple(
                dataclasses.replace(one, chosen=one.chosen + 1e-15 * number) for one in found
            )
        return result

    engine.executor.execute = rounded
    records = serve(engine, asking(0, 9, 5, n=2, best_of=4, ignore_eos=True))
    assert [record.dropped for record in records.values()] == [False, False, True, True]


def test_an_abort_before_the_choice_gives_nothing_out(model_of):
    client = Client(build(model_of(), max_requests=2))
    client.submit(asking(0, 9, 4, n=1, best_of=3, **WILD))
    client.step(6)
    assert not client.records
    client.abort(0)
    records = client.finish()
    assert client.tokens == {0: [], (0, 1): [], (0, 2): []}
    assert all(record.dropped for record in records.values())
    assert {r.status for r in records.values()} == {Status.FINISHED, Status.ABORTED}


def test_best_of_needs_probabilities():
    records = serve(build(), asking(0, 5, n=1, best_of=2), asking(1, 5, n=2))
    assert "best_of=2 cannot be served: executor=fixed" in records[0].error
    assert records[1].status is records[1, 1].status is Status.FINISHED
