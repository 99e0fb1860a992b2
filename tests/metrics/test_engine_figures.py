"""Figures of a real engine on a virtual clock whose step takes 10 ms, against hand counts."""

import pytest

from interlock.core.assemble import assemble
from interlock.core.engine import Engine
from interlock.core.request import HashedPrompt, Request, RequestRecord, SamplingParams
from interlock.driver.metrics import summarize

FIXED = ["executor=fixed", "executor.step_ms=10", "executor.token_ms=0", "executor.draft_ms=0"]
FIXED += ["cache.page_size=16", "cache.num_pages=64", "cache=radix"]


def served(engine: Engine, *requests: Request) -> list[RequestRecord]:
    for request in requests:
        engine.submit(request)
    ended = [o.finished for o in engine.outputs() if o.finished is not None]
    engine.core.ledger.check()
    return sorted(ended, key=lambda record: record.index)


def asking(index: int, prompt: int, output: int, arrival_s: float = 0.0) -> Request:
    ids = tuple(range(100, 100 + prompt))
    return Request(index, ids, SamplingParams(max_tokens=output), arrival_s)


def test_a_lone_request_takes_one_step_for_its_prompt_and_one_a_token():
    engine = assemble(FIXED)
    records = served(engine, asking(0, prompt=33, output=10))
    summary = summarize(records, engine.core.ledger, clock="virtual")
    assert summary["mean_ttft_ms"] == pytest.approx(10)
    assert summary["mean_tpot_ms"] == pytest.approx(10)
    assert summary["mean_e2el_ms"] == pytest.approx(100)
    assert summary["sets"]["itl"]["count"] == 9
    assert (summary["steps"], summary["rows"]) == (10, 10)
    assert summary["tokens"]["prompt_computed"] == 33
    assert summary["tokens"]["decode"] == 9
    assert summary["tokens"]["tokens_run"] == 42
    assert summary["emitted_per_pass"] == 1.0
    assert summary["duration"] == pytest.approx(0.1)


def test_a_repeated_prompt_hits_its_whole_pages_but_not_its_last_token():
    engine = assemble(FIXED)
    records = served(engine, asking(0, 48, 2), asking(1, 48, 2, arrival_s=1.0))
    assert [record.cached_tokens for record in records] == [0, 32]
    summary = summarize(records, engine.core.ledger)
    assert summary["prefix_cache_hit_rate"] == pytest.approx(32 / 96)
    assert summary["tokens"]["prompt_computed"] == 48 + 16


def test_a_hashed_prompt_hits_the_pages_of_the_blocks_it_shares():
    engine = assemble(FIXED)
    first = HashedPrompt((7, 8, 9), block_tokens=32, num_tokens=80)
    second = HashedPrompt((7, 8, 5), block_tokens=32, num_tokens=96)
    sampling = SamplingParams(max_tokens=3, ignore_eos=True)
    records = served(
        engine,
        Request(0, hashed_prompt=first, sampling=sampling),
        Request(1, hashed_prompt=second, sampling=sampling, arrival_s=1.0),
    )
    assert [record.cached_tokens for record in records] == [0, 64]
    assert [len(record.output_token_ids) for record in records] == [3, 3]
    assert records[1].chunk_times_s == pytest.approx([1.01, 1.02, 1.03])


def test_bad_requests_fail_alone_with_their_reasons():
    engine = assemble(FIXED)
    outside = Request(2, (5, 10**9), SamplingParams(max_tokens=2))
    records = served(
        engine, asking(0, 20, 2), asking(1, 0, 2), outside, asking(3, 20, 0), asking(4, 20, 2)
    )
    assert [record.status.value for record in records] == [
        "finished", "failed", "failed", "failed", "finished",
    ]  # fmt: skip
    reasons = [record.error for record in records[1:4]]
    assert "the prompt is empty" in reasons[0]
    assert "1000000000" in reasons[1]
    assert "max_tokens=0" in reasons[2]
    summary = summarize(records, engine.core.ledger)
    assert (summary["completed"], summary["failed"]) == (2, 3)
