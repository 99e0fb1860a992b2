"""The account of speculation, on a virtual clock whose costs are known."""

import pytest

from interlock.core.assemble import assemble
from interlock.core.request import Request, SamplingParams
from interlock.driver.activity import counters, inert
from interlock.driver.metrics import summarize
from interlock.driver.report import figures
from interlock.driver.speculation import StepTimesAccount

COSTS = ["executor=fixed", "executor.step_ms=8", "executor.token_ms=1", "executor.draft_ms=2"]


def run(*overrides, stop=None, tokens=80, one_pass=False):
    """Two requests with these drafts: engine, records and what watched the steps."""
    engine = assemble([*COSTS, "progress=false", *overrides])
    account = StepTimesAccount(one_pass)
    engine.watch(account)
    for index in range(2):
        sampling = SamplingParams(max_tokens=tokens, ignore_eos=True, stop_token_ids=stop or ())
        engine.submit(Request(index, (1, 2, 3 + index), sampling))
    records = [o.finished for o in engine.outputs() if o.finished]
    engine.core.ledger.check()
    return engine, records, account


def test_candidates_are_accounted_for_by_depth():
    engine, records, _ = run("spec=ngram", "spec.num_drafts=3", "executor.acceptance=0.6")
    ledger = engine.core.ledger
    assert len(ledger.offered_by_depth) == 3
    assert ledger.verified_by_depth[0] == ledger.draft_rounds
    assert sum(ledger.verified_by_depth) == ledger.drafted
    assert sum(r.accepted_tokens for r in records) == sum(ledger.accepted_by_depth)
    assert ledger.emitted_by_depth[0] == ledger.draft_rounds
    assert ledger.emitted_by_depth[1:] == ledger.accepted_by_depth
    summary = summarize(records, ledger)
    first, second, _ = summary["conditional_acceptance"]
    rates = summary["spec_decode_per_position_acceptance_rates"]
    assert rates[:2] == pytest.approx([first, first * second])
    assert summary["emitted_per_round"] == summary["spec_decode_acceptance_length"]


def test_what_comes_after_a_stop_was_not_accepted():
    _, (plain, _), _ = run("spec=none")
    stop = plain.output_token_ids[4]
    engine, records, _ = run("spec=ngram", "executor.acceptance=1", stop=(stop,))
    ledger = engine.core.ledger
    cut_short = next(r for r in records if r.index == plain.index)
    assert cut_short.output_token_ids == plain.output_token_ids[:5]
    given = sum(len(r.output_token_ids) for r in records)
    without = 2 + ledger.decode - ledger.draft_rounds  # ends of prompts, and passes without drafts
    assert sum(ledger.emitted_by_depth) == given - without
    assert ledger.accepted < ledger.drafted


def test_cut_candidates_are_counted_apart():
    table = "spec.length.at={1:3,2:1}"
    engine, _, _ = run("spec=ngram", "spec.num_drafts=3", "spec/length=schedule", table)
    ledger = engine.core.ledger
    assert ledger.shortened > 0
    assert ledger.cut == sum(ledger.offered_by_depth) - ledger.drafted


def test_a_policy_that_never_cut_anything_is_inert():
    whole = "spec.length.at={1:9}"
    engine, _, _ = run("spec=ngram", "spec/length=schedule", whole)
    assert counters(engine)["spec/length"] == {"shortened": 0}
    assert "spec/length" in inert(engine)
    engine, _, _ = run("spec=ngram", "spec/length=schedule", "spec.length.at={1:2}")
    assert "spec/length" not in inert(engine)
    assert "spec/length" not in inert(run("spec=ngram", "spec/length=fixed")[0])


@pytest.mark.parametrize("one_pass", [False, True])
def test_the_model_of_the_speed_up_is_what_a_virtual_clock_gives(one_pass):
    plain, _, times = run("spec=none", tokens=400)
    base = times.plain_step_s()
    assert base[2] == pytest.approx(0.010)
    assert times.summary(1.0)["verify_inflation"] is None  # nothing was verified
    engine, drafted, times = run(
        "spec=ngram", "spec.num_drafts=3", "executor.acceptance=0.8", tokens=400, one_pass=one_pass
    )
    emitted = summarize(drafted, engine.core.ledger)["emitted_per_pass"]
    found = times.summary(emitted, base)
    assert found["verify_inflation"] == pytest.approx(16 / 10, rel=0.02)
    assert found["draft_step_share"] == pytest.approx(0.6 if one_pass else 0.2, rel=0.02)
    assert found["modelled_speedup"] == pytest.approx(emitted / 2.2, rel=0.03)
    measured = plain.clock.now() / engine.clock.now()
    assert found["modelled_speedup"] == pytest.approx(measured, rel=0.05)
    summary = summarize(drafted, engine.core.ledger) | {"speculation": found}
    assert figures(summary)["verifying / plain step (v)"] == f"{found['verify_inflation']:.3f}"
    assert "%" in figures(summary)["given those before"]
