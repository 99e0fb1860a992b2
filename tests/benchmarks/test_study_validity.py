"""A short form of the benchmark of studies, with planted components."""

import pytest

from benchmarks.study_validity import (
    Bench,
    effect,
    equal_study,
    false_alarms,
    found_any,
    page,
    planted,
    planted_study,
    power,
)
from interlock.study.analyse import analyse


@pytest.fixture(scope="module")
def bench():
    return Bench()


def test_twenty_equal_cells_differ_by_noise_and_have_no_winner(bench):
    study, cells = equal_study(seed=0)
    seen = bench.observe(study, cells)
    assert len({one.values["mean_tpot_ms"] for one in seen}) == len(seen) == 63
    assert len({one.workload_sha256 for one in seen}) == 3
    assert not found_any(analyse(study, cells, seen))


def test_steps_five_percent_slower_are_found_and_a_policy_that_does_nothing_is_inert(bench):
    study, cells = planted_study(seed=1, slowdown=0.05, repeats=4)
    findings = analyse(study, cells, bench.observe(study, cells))
    slowed = effect(findings, "engine=slowed")
    assert slowed.verdict == "worse"
    assert 0 < slowed.estimate.low < 0.05 < slowed.estimate.high
    for metric in ("mean_ttft_ms", "mean_tpot_ms", "output_throughput"):
        assert effect(findings, "eviction=idle", metric).verdict == "inert"


def test_the_page_says_what_the_parts_found(bench, monkeypatch):
    monkeypatch.setattr("benchmarks.study_validity.SLOWDOWNS", (0.05,))
    monkeypatch.setattr("benchmarks.study_validity.CELLS", 2)
    report = {
        "equal_cells": false_alarms(bench, [0]),
        "planted": planted(bench, [0]),
        "power": power(bench, [0]),
    }
    text = page(report)
    assert "| 5% | " in text
    assert report["planted"]["idle"] == {"inert": 1}
