"""Beam search: transformers' outputs, scores and order, over pages that beams share."""

import dataclasses
import itertools
import warnings

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from interlock.core.registry import load_registry
from interlock.core.request import FinishReason, SamplingParams, Status, TokenLogprobs
from interlock.plugins.executor import GraphConfig
from interlock.plugins.scheduler import PrefillFirstConfig, WhenItFitsConfig
from interlock.plugins.search.beam_search import BeamSearch
from interlock.plugins.speculative import NgramConfig
from tests.engine.serving import Client, asking, build, overlapping, serve, tokens
from tests.models.oracle import Oracle, write_oracle

CLOSE = 1e-4
"""transformers sums in fp32."""
ENDS = (3, 17, 40, 41, 77, 90, 91, 92)
SEARCHES = [
    # width, length_penalty, early_stopping, max_tokens, min_tokens, ends
    (2, 1.0, False, 12, 0, ENDS),
    (3, 0.0, True, 12, 0, ENDS[:3]),
    (3, -1.0, False, 10, 3, ENDS),
    (4, 2.0, "never", 9, 0, ENDS),
    (4, 1.0, True, 14, 5, ENDS),
    (5, 1.0, "never", 7, 7, ENDS[:1]),
    (2, 0.5, True, 20, 0, tuple(range(2, 40, 3))),
    (6, 1.0, False, 1, 0, ENDS),
    (3, 1.0, False, 8, 0, ()),
]
CACHES = [
    {"allocator": "paged", "index": "radix", "page_size": 4},
    {"allocator": "paged", "index": "none", "page_size": 1},
    {"allocator": "paged", "index": "block_hash", "page_size": 16},
    {"allocator": "contiguous", "index": "none", "page_size": 4, "max_requests": 3},
]
SHAPES = ("llama_gqa", "ministral_hybrid", "deepseek_v2_lite", "gpt_oss")
_oracles: dict[str, Oracle] = {}


@pytest.fixture
def oracle_of(tmp_path_factory):
    def oracle(shape):
        if shape not in _oracles:
            folder = tmp_path_factory.mktemp("beams")
            _oracles[shape] = write_oracle(folder, shape, new_tokens=1)
        return _oracles[shape]

    return oracle


def theirs(oracle, search):
    """Every output of transformers with its score, best first."""
    width, penalty, early, most, least, ends = search
    ids = torch.tensor([oracle.prompt])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        out = oracle.model.generate(
            ids, attention_mask=torch.ones_like(ids), do_sample=False, num_beams=width,
            num_return_sequences=width, length_penalty=penalty, early_stopping=early,
            max_new_tokens=most, min_new_tokens=least or None, eos_token_id=list(ends) or None,
            pad_token_id=0, output_scores=True, return_dict_in_generate=True,
        )  # fmt: skip
    found = []
    for sequence, score in zip(out.sequences.tolist(), out.sequences_scores.tolist(), strict=True):
        output = sequence[len(oracle.prompt) :]
        end = next((place for place, token in enumerate(output) if token in ends), len(output))
        found.append((output[: end + 1], pytest.approx(score, abs=CLOSE)))
    return found


def request_of(oracle, search, index=0, **more):
    width, penalty, early, most, least, ends = search
    options = {"n": width, "stop_token_ids": ends, "min_tokens": least, **more}
    return asking(
        index, oracle.prompt, most, beam_width=width, length_penalty=penalty, early_stopping=early,
        **options,
    )  # fmt: skip


def ours(records, index=0):
    """Every output that was given out with its score, by sample."""
    return [
        (record.output_token_ids, record.beam_score)
        for record in sorted(records.values(), key=lambda record: record.sample)
        if record.index == index and not record.dropped
    ]


@pytest.mark.parametrize("search", SEARCHES, ids=str)
def test_outputs_scores_and_their_order_are_those_of_transformers(oracle_of, search):
    oracle = oracle_of("llama_gqa")
    right = theirs(oracle, search)
    for cache in CACHES:
        records = serve(build(oracle.directory, num_pages=160, **cache), request_of(oracle, search))
        assert ours(records) == right
        for record in records.values():
            stopped = record.output_token_ids[-1] in search[-1]
            assert record.finish_reason is (FinishReason.STOP if stopped else FinishReason.LENGTH)


@pytest.mark.parametrize("shape", SHAPES)
def test_every_kind_of_cache_group_is_forked(oracle_of, shape):
    """Windows of 8 tokens, latents, sinks; chunks of 5, steps of at most 5 tokens."""
    oracle = oracle_of(shape)
    for search in (SEARCHES[3], SEARCHES[6]):
        right = theirs(oracle, search)
        for page_size in (1, 4):
            engine = build(
                oracle.directory, page_size=page_size, num_pages=160, budget_tokens=5, index="radix"
            )
            assert ours(serve(engine, request_of(oracle, search))) == right


def test_searches_beside_each_other_and_beside_other_requests(oracle_of):
    """One engine, all searches at once, prefix hits between them, pages for a few only."""
    oracle = oracle_of("llama_gqa")
    for scheduling in ({}, {"chunking": PrefillFirstConfig()}, {"executor": GraphConfig()}):
        engine = build(
            oracle.directory, index="radix", num_pages=24, max_requests=6, budget_tokens=16,
            **scheduling,
        )  # fmt: skip
        asked = [request_of(oracle, search, index) for index, search in enumerate(SEARCHES)]
        greedy = asking(99, oracle.prompt, 12, ignore_eos=True)
        records = serve(engine, *asked, greedy)
        for index, search in enumerate(SEARCHES):
            assert ours(records, index) == theirs(oracle, search)
        (alone,) = serve(build(oracle.directory), greedy).values()
        assert records[99].output_token_ids == alone.output_token_ids
        assert engine.core.queues.counters.preemptions > 0
        assert engine.core.cache.counters.hits > 0


def test_beams_fork_pages_and_compute_one_token_a_round(oracle_of):
    """33 prompt tokens once, then each round a token for each beam; full pages have one copy."""
    oracle = oracle_of("llama_gqa")
    engine = build(oracle.directory, index="none", page_size=4, num_pages=64)
    pool, execute, shared = engine.core.cache.pools[0], engine.executor.execute, []

    def watched(plan):
        shared.append((plan.batch.num_rows, int((pool.refs == 4).sum())))
        return execute(plan)

    engine.executor.execute = watched
    serve(engine, request_of(oracle, (4, 1.0, False, 12, 0, ())))
    assert shared[0] == (1, 0)
    assert all(rows == 4 and pages >= 8 for rows, pages in shared[1:])  # the prompt's full ones
    ledger = engine.core.ledger
    assert (ledger.prompt_computed, ledger.recomputed, ledger.decode) == (33, 0, 4 * 11)


def test_pages_of_ended_beams_are_free_before_the_next_step(oracle_of):
    oracle = oracle_of("llama_gqa")
    client = Client(build(oracle.directory, index="none", page_size=1, num_pages=300))
    client.submit(request_of(oracle, (5, 1.0, False, 16, 0, ())))
    while client.engine.has_work:
        client.step()
        core = client.engine.core
        rows = [live for live in core._live.values() if live.holding is not None]
        entries = {
            tuple(live.sequence.slice(0, n + 1)) for live in rows for n in range(live.computed)
        }
        assert core.cache.pools[0].held == len(entries), "a page that no running beam's rows are in"


def test_a_search_with_more_beams_than_slots_or_pages_takes_turns(oracle_of):
    oracle = oracle_of("llama_gqa")
    search = SEARCHES[4]
    right = theirs(oracle, search)
    for room in ({"max_requests": 1}, {"max_requests": 3}, {"num_pages": 12}, {"num_pages": 13}):
        for cache in CACHES[:1] + CACHES[3:]:
            engine = build(oracle.directory, **({"num_pages": 64} | cache | room))
            assert ours(serve(engine, request_of(oracle, search))) == right


def test_what_was_asked_for_comes_with_the_best_outputs(oracle_of):
    """The n best; log-probabilities add up to the score; prompt laws as without beams."""
    oracle = oracle_of("llama_gqa")
    search = (4, 1.0, False, 6, 0, ENDS)
    engine = build(oracle.directory, index="radix")
    asked = request_of(oracle, search, n=2, logprobs=3, prompt_logprobs=1, echo=True)
    client = Client(engine)
    client.submit(asked)
    assert not any(client.step(3).values())
    records = client.finish()
    assert ours(records) == theirs(oracle, search)[:2]
    assert [records[key].dropped for key in (0, (0, 1), (0, 2), (0, 3))] == [
        False,
        False,
        True,
        True,
    ]
    for key in (0, (0, 1)):
        record = records[key]
        total = sum(one.chosen for one in record.logprobs)
        assert record.beam_score == pytest.approx(total / len(record.output_token_ids))
        assert [len(one.top) for one in record.logprobs] == [3] * len(record.output_token_ids)
    plain = asking(1, oracle.prompt, 1, prompt_logprobs=1, echo=True)
    (alone,) = serve(build(oracle.directory), plain).values()
    assert len(records[0].prompt_logprobs) == len(oracle.prompt)
    for found, expected in zip(
        records[0].prompt_logprobs[1:], alone.prompt_logprobs[1:], strict=True
    ):
        assert found.chosen == pytest.approx(expected.chosen)
    assert records[0].prompt_token_ids == tuple(oracle.prompt)


def test_banned_tokens_come_in_no_beam(oracle_of):
    oracle = oracle_of("llama_gqa")
    search = (3, 1.0, False, 8, 0, ())
    first = serve(build(oracle.directory), request_of(oracle, search))
    banned = tuple(sorted({token for output, _ in ours(first) for token in output}))[:5]
    records = serve(build(oracle.directory), request_of(oracle, search, banned_token_ids=banned))
    ids = torch.tensor([oracle.prompt])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        out = oracle.model.generate(
            ids, attention_mask=torch.ones_like(ids), num_beams=3, do_sample=False,
            eos_token_id=None, num_return_sequences=3, max_new_tokens=8, pad_token_id=0,
            bad_words_ids=[[token] for token in banned],
        )  # fmt: skip
    assert [output for output, _ in ours(records)] == out[:, len(oracle.prompt) :].tolist()


@pytest.mark.parametrize(
    ("sampling", "reason"),
    [
        (
            {"temperature": 0.5},
            "temperature=0.5 cannot be followed by a beam search (beam_width=4)",
        ),
        ({"seed": 3}, "seed=3 cannot be followed"),
        ({"best_of": 4}, "best_of=4 cannot be followed"),
        ({"stop": ("x",)}, "cannot be followed"),
        ({"repetition_penalty": 1.1}, "repetition_penalty=1.1 cannot be followed"),
        ({"presence_penalty": 1.0}, "presence_penalty=1.0 cannot be followed"),
        ({"logit_bias": {3: 1.0}}, "cannot be followed"),
        ({"allowed_token_ids": (1, 2, 3)}, "cannot be followed"),
        ({"regex": "a+"}, "regex='a+' cannot be followed"),
        ({"n": 5}, "n=5 is not an integer from 1 to beam_width=4"),
        ({"length_penalty": 11.0}, "length_penalty=11.0 is not a number from -10 to 10"),
        ({"early_stopping": "later"}, "early_stopping='later' is not true, false or never"),
        ({"early_stopping": 1}, "early_stopping=1 is not true, false or never"),
        ({"beam_width": 0}, "beam_width=0 is not an integer from 1 to 1024"),
        ({"beam_width": 1, "length_penalty": 2.0}, "length_penalty=2.0 is of a beam search"),
        ({"beam_width": 1, "early_stopping": True}, "early_stopping=True is of a beam search"),
        ({"beam_width": 65}, "beam_width=65 ranks 130 tokens after a beam"),
        ({"beam_width": 20, "stop_token_ids": (1, 2, 3, 4, 5, 6)}, "ranks 140 tokens after a beam"),
    ],
)
def test_what_a_search_cannot_follow_is_refused_with_the_reason(oracle_of, sampling, reason):
    engine = build(oracle_of("llama_gqa").directory)
    records = serve(engine, asking(0, 9, 4, **{"beam_width": 4} | sampling), asking(1, 9, 4))
    assert records[0].status is Status.FAILED
    assert reason in records[0].error
    assert records[1].status is Status.FINISHED


def test_beams_that_no_installed_plugin_searches_are_refused(oracle_of):
    without = dataclasses.replace(load_registry(), searches=[])
    engine = build(oracle_of("llama_gqa").directory, without)
    records = serve(engine, asking(0, 9, 4, beam_width=2), asking(1, 9, 4))
    assert records[0].error == "request 0: no plugin searches with beam_width=2"
    assert records[1].status is Status.FINISHED


def test_drafts_and_made_up_tokens_have_no_beams(oracle_of):
    drafting = build(oracle_of("llama_gqa").directory, spec=NgramConfig())
    records = serve(drafting, asking(0, 9, 4, beam_width=2))
    assert "beam_width=2 cannot be served: spec=ngram drafts" in records[0].error
    records = serve(build(), asking(0, 9, 4, beam_width=2))
    assert "executor=fixed computes no probabilities" in records[0].error


def test_unusable_logits_after_one_beam_end_the_request_alone(oracle_of):
    oracle = oracle_of("llama_gqa")
    for step, overlap in itertools.product((1, 2, 4), (False, True)):
        engine = build(oracle.directory, index="radix", num_pages=64)
        execute = engine.executor.execute

        def failing(plan, step=step, execute=execute):
            result = execute(plan)
            beams = [r for r, params in enumerate(plan.params) if params.beam_width > 1]
            if plan.step_id >= step and beams:
                result.errors[beams[-1]] = "broken"
                result.logprobs.pop(beams[-1], None)
            return result

        engine.executor.execute = failing
        client = Client(overlapping(engine) if overlap else engine)
        client.submit(request_of(oracle, SEARCHES[3]), asking(1, 9, 12, ignore_eos=True))
        records = client.finish()
        for key in (0, (0, 1), (0, 2), (0, 3)):
            assert (records[key].status, records[key].error) == (Status.FAILED, "broken")
        assert records[1].status is Status.FINISHED


@settings(
    max_examples=30, deadline=None, derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)  # fmt: skip
@given(data=st.data())
def test_any_room_and_any_abort_leave_every_page_account_right(model_of, data):
    """Two searches and a plain request; `Client` recomputes all accounts after each step."""
    draw = data.draw
    kind = draw(st.sampled_from(["gqa", "hybrid"]))
    page_size = draw(st.sampled_from([1, 3, 4, 16]))
    longest = 20
    searches = [
        asking(
            index, tokens(9)[: draw(st.integers(1, 9))], draw(st.integers(1, 10)),
            beam_width=draw(st.integers(2, 5)),
            early_stopping=draw(st.sampled_from([True, "never"])),
            priority=draw(st.integers(0, 1)), stop_token_ids=tuple(range(2, 12)),
        )
        for index in (0, 1)
    ]  # fmt: skip
    asked = [*searches, asking(2, 9, 10, ignore_eos=True)]
    allocator, index = draw(
        st.sampled_from([("paged", "radix"), ("paged", "none"), ("contiguous", "none")])
    )
    engine = build(
        model_of(kind), page_size=page_size, allocator=allocator, index=index,
        num_pages=-(-longest // page_size) + draw(st.integers(0, 12)),
        budget_tokens=draw(st.sampled_from([1, 3, 8, 40])),
        max_requests=draw(st.sampled_from([1, 2, 4, 8])),
        order=draw(st.sampled_from(["arrival", "priority"])),
        victim=draw(st.sampled_from(["latest", "lowest_priority"])),
        chunking=draw(st.sampled_from(["decode_first", "prefill_first"])),
        admission=WhenItFitsConfig(reserve_share=draw(st.sampled_from([0.0, 0.3]))),
    )  # fmt: skip
    client = Client(overlapping(engine) if draw(st.booleans()) else engine)
    client.submit(*asked)
    aborted = draw(st.sampled_from([None, 0, 1]))
    if aborted is not None:
        client.step(draw(st.integers(0, 20)))
        client.abort(aborted)
    records = client.finish(3000)
    right = serve(build(model_of(kind), num_pages=200, max_requests=16), *asked)
    for key, record in records.items():
        if record.finish_reason is FinishReason.ABORT:
            assert record.index == aborted
        else:
            assert record.output_token_ids == right[key].output_token_ids
            assert record.beam_score == pytest.approx(right[key].beam_score)


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 999),
    vocabulary=st.integers(3, 5),
    most=st.integers(1, 3),
    penalty=st.sampled_from([-1.0, 0.0, 1.0, 3.0]),
    least=st.integers(0, 2),
)
def test_a_search_as_wide_as_all_outputs_finds_the_best_of_all(
    seed, vocabulary, most, penalty, least
):
    """Brute force over every output that a law drawn at random for each history allows."""
    end = 0

    def law(history):
        key = seed + hash(history) % 10**9
        return torch.randn(vocabulary, generator=torch.Generator().manual_seed(key)).log_softmax(-1)

    scores = {}

    def visit(history, total):
        for token, logprob in enumerate(law(history).tolist()):
            length = len(history) + 1
            if token == end and length <= least:
                continue
            if token == end or length == most:
                scores[*history, token] = (total + logprob) / length**penalty
            else:
                visit((*history, token), total + logprob)

    visit((), 0.0)
    params = SamplingParams(
        beam_width=len(scores) + 1, length_penalty=penalty, early_stopping="never", min_tokens=least
    )
    search = BeamSearch(params, {end}, most)
    while not search.advance(
        [TokenLogprobs(0.0, tuple(enumerate(law(b.tokens).tolist()))) for b in search.beams]
    ):
        pass
    best = max(scores, key=scores.__getitem__)
    found = search.finished[0]
    assert found.score == pytest.approx(scores[best])
    assert found.beam.tokens == best
    assert len(search.finished) == len(scores)
