"""What the engine writes down about a request, against hand counts on a virtual clock."""

import pytest

from interlock.core.request import Status
from interlock.driver.latency import latencies
from interlock.plugins.executor import FixedConfig
from interlock.plugins.speculative.heads.options import EagleConfig
from tests.engine.serving import Client, asking, build, serve


def on_a_10_ms_clock(acceptance=1.0, **settings):
    executor = FixedConfig(step_ms=10, token_ms=0, draft_ms=0, acceptance=acceptance)
    return build(executor=executor, **settings)


def test_tokens_of_one_verification_come_out_in_one_chunk():
    engine = on_a_10_ms_clock(spec=EagleConfig(num_drafts=2))
    record = serve(engine, asking(0, 5, 13))[0]
    assert record.chunk_sizes == [1, 3, 3, 3, 3]
    assert record.chunk_times_s == pytest.approx([0.01, 0.02, 0.03, 0.04, 0.05])
    assert (record.target_passes, record.pass_tokens) == (4, 12)
    assert (record.draft_rounds, record.drafted_tokens, record.accepted_tokens) == (4, 8, 8)
    found = latencies(record)
    assert found.ttft_s == pytest.approx(0.01)
    assert found.tpot_s == pytest.approx(0.04 / 12)
    assert sum(found.itl_s.tolist()) == pytest.approx(0.04)
    assert len(found.itl_s) == 12
    assert found.chunk_gap_s.tolist() == pytest.approx([0.01] * 4)


def test_times_run_from_the_scheduled_arrival_not_from_admission():
    engine = on_a_10_ms_clock(max_requests=1)
    records = serve(engine, asking(0, 4, 5), asking(1, 4, 5, arrival_s=0.015))
    assert records[1].arrival_s == 0.015
    assert records[1].admitted_s == pytest.approx(0.05)
    assert latencies(records[1]).ttft_s == pytest.approx(0.06 - 0.015)


def test_a_chunked_prompt_gives_its_first_token_with_its_last_chunk():
    engine = on_a_10_ms_clock(budget_tokens=4)
    record = serve(engine, asking(0, 10, 2))[0]
    assert record.chunk_times_s == pytest.approx([0.03, 0.04])
    assert record.target_passes == 1


def test_recomputed_tokens_are_no_new_work_and_no_new_tokens():
    engine = on_a_10_ms_clock(num_pages=7, index="none")
    records = serve(engine, asking(0, 8, 12), asking(1, 8, 12))
    tokens = engine.core.ledger.tokens()
    assert records[1].preemptions >= 1
    assert records[1].recomputed_tokens > 0
    assert tokens["recomputed"] == records[0].recomputed_tokens + records[1].recomputed_tokens
    assert sum(len(record.output_token_ids) for record in records.values()) == 24
    assert tokens["prompt_computed"] + tokens["decode"] == 2 * (8 + 12 - 1)
    assert records[1].cached_tokens == 0


def test_a_hit_counts_at_first_admission_only():
    engine = on_a_10_ms_clock(num_pages=8, index="radix")
    prompt = asking(0, 9).prompt_token_ids
    serve(engine, asking(9, prompt, 1))
    records = serve(engine, asking(0, prompt, 12), asking(1, (*prompt[:4], 5, 6, 7, 8, 9), 12))
    assert (records[0].cached_tokens, records[1].cached_tokens) == (8, 4)
    assert sum(record.preemptions for record in records.values()) > 0


def test_every_request_ends_in_exactly_one_state():
    client = Client(on_a_10_ms_clock(max_requests=2))
    client.submit(
        asking(0, 4, 3), asking(1, (), 3), asking(2, 4, 1), asking(3, 4, 9), asking(4, 4, 3)
    )
    client.step(3)
    client.abort(3)
    client.submit(asking(5, 4, 50))
    client.step(3)
    unfinished = client.engine.core.unfinished()
    assert [record.index for record in unfinished] == [5]
    assert {index: record.status for index, record in client.records.items()} == {
        0: Status.FINISHED,
        1: Status.FAILED,
        2: Status.FINISHED,
        3: Status.ABORTED,
        4: Status.FINISHED,
    }
    assert unfinished[0].status is Status.RUNNING
    client.finish()
