"""A short form of the benchmark of studies, with planted components."""

import pytest

from benchmarks.study_validity import (
    Bench,
    effect,
    equal_study,
    found_any,
    planted_study,
)
from interlock.study.analyse import analyse
from tests.benchmarks.scripts import report


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


def test_the_page_says_what_the_parts_found(tmp_path):
    page = tmp_path / "page.md"
    sizes = ["--seeds", "1", "--cells", "2", "--slowdowns", "0.05", "--repeats", "3"]
    found = report("study_validity", tmp_path, *sizes, "--page", str(page))
    assert found["equal_cells"]["intervals"] == 3
    assert found["planted"]["idle"] == {"inert": 1}
    assert [(row["slowdown"], row["repeats"]) for row in found["power"]] == [(0.05, 3)]
    assert "| 5% | " in page.read_text()
