import json

import numpy as np
import pytest

from interlock.core.batch import Draft
from interlock.core.ledger import StepLedger
from interlock.core.request import RequestRecord, Status
from interlock.core.settings import LimitsConfig
from interlock.core.testing.records import answered, failed, running
from interlock.driver.latency import latencies
from interlock.driver.metrics import max_concurrent, summarize
from interlock.driver.weight_bytes import bytes_moved


def ledger() -> StepLedger:
    return StepLedger()


def close(value: float) -> object:
    return pytest.approx(value, rel=1e-9, abs=1e-9)


def test_a_token_every_ten_ms_after_a_second_is_ttft_1000_itl_10_tpot_10():
    record = answered(0, [(1000 + 10 * i, 1) for i in range(10)])
    found = latencies(record)
    assert found.ttft_s == close(1.0)
    assert found.tpot_s == close(0.010)
    assert len(found.itl_s) == 9  # the first token's wait is not among the gaps
    assert found.itl_s.mean() == close(0.010)
    assert found.e2el_s == close(1.09)


def test_empty_chunks_are_no_tokens_and_the_end_is_the_last_token():
    record = answered(0, [(5, 0), (400, 1), (600, 1), (900, 0)])
    found = latencies(record)
    assert found.ttft_s == close(0.4)
    assert found.e2el_s == close(0.6)
    assert found.itl_s.tolist() == close([0.2])
    assert found.chunk_gap_s.tolist() == close([0.2])


def test_chunks_of_three_tokens_have_one_tpot_and_their_own_gap():
    record = answered(0, [(100, 3), (130, 3), (160, 3), (190, 3)])
    found = latencies(record)
    assert found.tpot_s == close(0.090 / 11)
    assert round(found.tpot_s * 1e3, 2) == 8.18
    assert len(found.itl_s) == 11
    assert sorted(found.itl_s.tolist()) == close([0, 0] + [0.010] * 9)
    assert found.itl_s.mean() == close(found.tpot_s)
    assert found.chunk_gap_s.tolist() == close([0.030] * 3)
    summary = summarize([record], ledger())
    assert summary["mean_tpot_ms"] == close(90 / 11)
    assert summary["mean_itl_ms"] == close(90 / 11)
    assert summary["mean_chunk_gap_ms"] == close(30)


def test_latencies_start_at_the_scheduled_arrival():
    found = latencies(answered(0, [(700, 1), (720, 1)], arrival_ms=200))
    assert (found.ttft_s, found.e2el_s) == (close(0.5), close(0.52))


def test_percentiles_are_linear_and_of_completed_requests():
    records = [answered(i, [(t, 1), (t + 10, 1)]) for i, t in enumerate((100, 200, 300, 400))]
    summary = summarize([*records, failed(4)], ledger())
    assert summary["median_ttft_ms"] == close(250)
    assert summary["p90_ttft_ms"] == close(370)  # 300 + 0.7 * 100
    assert summary["p99_ttft_ms"] == close(397)
    assert summary["std_ttft_ms"] == close(np.sqrt(12500))
    assert summary["sets"]["ttft"] == {"of": "completed requests with a token", "count": 4}


def a_hundred_requests() -> list[RequestRecord]:
    """60 finished in 1 s: 10 with one token, 20 with a slow first token, 30 quick; 30 failed at
    once; 10 unfinished."""
    one_token = [answered(i, [(100, 1)]) for i in range(10)]
    slow = [answered(10 + i, [(900, 1), (1000, 1)]) for i in range(20)]
    quick = [answered(30 + i, [(50, 1), (60, 1), (70, 1)]) for i in range(30)]
    return [
        *one_token,
        *slow,
        *quick,
        *(failed(60 + i) for i in range(30)),
        *(running(90 + i) for i in range(10)),
    ]


def test_failed_and_unfinished_requests_are_counted_and_are_not_fast_ones():
    summary = summarize(a_hundred_requests(), ledger())
    counts = [summary[key] for key in ("completed", "failed", "unfinished", "aborted")]
    assert counts == [60, 30, 10, 0]
    assert summary["mean_ttft_ms"] == close((10 * 100 + 20 * 900 + 30 * 50) / 60)
    assert summary["total_output_tokens"] == 10 + 40 + 90
    assert summary["total_input_tokens"] == 600
    assert summary["duration"] == close(1.0)
    assert summary["request_throughput"] == close(60)
    assert summary["output_throughput"] == close(140)
    assert summary["total_token_throughput"] == close(740)


def test_one_token_requests_are_left_out_of_tpot():
    summary = summarize(a_hundred_requests(), ledger())
    assert summary["sets"]["tpot"]["count"] == 50
    assert summary["mean_tpot_ms"] == close((20 * 100 + 30 * 10) / 50)


def test_goodput_is_requests_that_meet_all_limits_per_second():
    limits = LimitsConfig(ttft_ms=500, tpot_ms=50)
    summary = summarize(a_hundred_requests(), ledger(), limits)
    assert summary["request_goodput"] == close(40)  # 30 quick ones and 10 of one token
    assert summary["good_requests"] == 40
    either = summarize(a_hundred_requests(), ledger(), LimitsConfig(tpot_ms=200, e2el_ms=80))
    assert either["request_goodput"] == close(30)


def test_goodput_is_undefined_without_limits():
    assert summarize(a_hundred_requests(), ledger())["request_goodput"] is None


def test_undefined_figures_are_null_and_never_nan():
    for records in ([], [failed(0)], [running(0)], [answered(0, [(0, 1)])]):
        summary = summarize(records, ledger(), LimitsConfig(ttft_ms=1))
        text = json.dumps(summary, allow_nan=False)
        assert "NaN" not in text
    nothing = summarize([failed(0)], ledger())
    assert nothing["mean_ttft_ms"] is None
    assert nothing["request_throughput"] is None
    assert nothing["prefix_cache_hit_rate"] is None
    assert nothing["spec_decode_acceptance_length"] is None
    assert nothing["emitted_per_pass"] is None
    assert nothing["kv_usage"] == {"mean": None, "peak": None}
    assert nothing["mbu"] is None


def test_request_lists_have_an_entry_for_every_request_in_order():
    records = [answered(0, [(100, 1), (120, 2)]), failed(1), running(2)]
    summary = summarize(records, ledger())
    assert summary["output_lens"] == [3, 0, 1]
    assert summary["input_lens"] == [10, 0, 10]
    assert summary["ttfts"] == [close(0.1), None, close(0.001)]
    assert summary["itls"] == [close([0.01, 0.01]), [], []]
    assert summary["errors"] == ["", "request 1: the prompt is empty", ""]
    assert "itls" not in summarize(records, ledger(), detailed=False)


def test_request_lists_are_left_out_of_long_runs():
    long = [answered(0, [(1, 100_000)])]
    assert "itls" in summarize(long, ledger())
    assert "itls" not in summarize([*long, answered(1, [(1, 1)])], ledger())


def test_acceptance_length_counts_rounds_and_the_bonus_token():
    account = ledger()
    for drafted, accepted in ((4, 4), (4, 2), (2, 0), (3, 2)):
        account.ran(decode=1, drafted=drafted)
        draft = Draft(tuple(range(drafted)))
        account.offered(draft, drafted)
        account.verified(draft, accepted, accepted + 1)
    account.ran(decode=1)  # a row without a draft is no round
    account.end_step(tokens_run=18, rows=5)
    account.check()
    summary = summarize([], account)
    assert summary["spec_decode_num_drafts"] == 4
    assert summary["spec_decode_draft_tokens"] == 13
    assert summary["spec_decode_accepted_tokens"] == 8
    assert summary["spec_decode_acceptance_rate"] == close(8 / 13)
    assert summary["spec_decode_acceptance_length"] == close(3.0)
    assert summary["spec_decode_per_position_acceptance_rates"] == close([0.75, 0.75, 0.25, 0.25])


def test_emitted_per_pass_leaves_the_prefill_out():
    eight_tokens = answered(0, [(10, 1), (20, 3), (30, 4)])  # a prefill and two verify passes
    one_token = answered(1, [(10, 1)])
    assert summarize([eight_tokens, one_token], ledger())["emitted_per_pass"] == close(3.5)


def test_hit_rate_is_cached_over_prompt_tokens_of_admitted_requests():
    hit, miss, never = answered(0, [(1, 1)]), answered(1, [(1, 1)]), failed(2)
    hit.cached_tokens, hit.num_prompt_tokens, never.num_prompt_tokens = 48, 70, 1000
    assert summarize([hit, miss, never], ledger())["prefix_cache_hit_rate"] == close(48 / 80)


def test_most_requests_at_one_moment_do_not_count_ones_that_only_touch():
    records = [
        answered(0, [(100, 1)], arrival_ms=0),
        answered(1, [(300, 1)], arrival_ms=100),
        answered(2, [(250, 1)], arrival_ms=200),
    ]
    assert max_concurrent(records) == 2
    assert max_concurrent([*records, failed(3, at_ms=220)]) == 2
    assert max_concurrent([*records, running(4)]) == 3


def test_ledger_notices_tokens_that_nobody_accounts_for():
    account = ledger()
    account.ran(prompt=100, recomputed=20)
    account.offered(Draft((1, 2, 3)), 3)
    account.ran(decode=1, drafted=3)
    account.end_step(tokens_run=128, rows=2, padding=4)
    account.check()
    account.end_step(tokens_run=1, rows=1)
    with pytest.raises(AssertionError, match="tokens by kind 128 != tokens run 129"):
        account.check()


def test_ledger_notices_verdicts_on_tokens_never_drafted():
    account = ledger()
    account.verified(Draft((1, 2)), accepted=1, emitted=2)
    with pytest.raises(AssertionError, match="2 more verdicts than drafted"):
        account.check()


def test_drafts_of_aborted_requests_are_discarded_not_rejected():
    account = ledger()
    account.offered(Draft((1, 2, 3, 4, 5, 6)), 5)
    account.ran(decode=1, drafted=5)
    account.end_step(tokens_run=6, rows=1)
    account.check()
    assert account.tokens() | {"discarded": 5, "rejected": 0} == account.tokens()


def test_mbu_is_bytes_moved_over_what_the_busy_time_could_move():
    account = ledger()
    account.ran(prompt=10, context=0)
    account.end_step(tokens_run=10, rows=1, start_s=0.0, end_s=0.5)
    account.ran(decode=1, context=10)
    account.end_step(tokens_run=1, rows=1, start_s=1.0, end_s=1.5)
    moved = bytes_moved(account, weights=1000, cache_per_token=8)
    assert moved == 2 * 1000 + 10 * 8
    found = summarize([], account, bytes_moved=moved, peak_bytes_per_s=4160.0)
    assert found["mbu"] == close(0.5)
    assert summarize([], account, bytes_moved=moved)["mbu"] is None


def test_steps_in_flight_together_share_their_busy_time():
    account = ledger()
    account.end_step(tokens_run=0, rows=0, start_s=0.0, end_s=1.0)
    account.end_step(tokens_run=0, rows=0, start_s=0.4, end_s=1.6)
    assert account.busy_s == close(1.6)


def test_kv_usage_is_a_mean_over_steps_and_a_peak():
    account = ledger()
    for held in (10, 40, 25):
        account.end_step(tokens_run=0, rows=0, held_pages=held, total_pages=100)
    assert summarize([], account)["kv_usage"] == {"mean": close(0.25), "peak": close(0.4)}


def test_aborted_requests_are_their_own_count():
    record = answered(0, [(10, 1)])
    record.status = Status.ABORTED
    summary = summarize([record], ledger())
    assert (summary["completed"], summary["aborted"]) == (0, 1)
    assert summary["mean_ttft_ms"] is None
