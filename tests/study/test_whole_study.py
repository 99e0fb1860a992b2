"""A study file, its runs in processes of their own, and what the analysis makes of them."""

from textwrap import dedent

import pytest

from interlock.core.registry import load_registry
from interlock.study.analyse import analyse
from interlock.study.folder import StudyFolder
from interlock.study.read_study import read_study
from interlock.study.run_study import run_study

TEXT = """
    base: [executor=fixed, executor.jitter=0.02, executor.wander=0.005, workload.source=random,
           workload.num_requests=6, workload.arrivals=at_once, workload.output_tokens=12]
    factors:
      engine: {plain: [executor.step_ms=10], slow: [executor.step_ms=10.6]}
      eviction: {lru: [cache/eviction=lru], arc: [cache/eviction=arc]}
    repeats: 4
    metrics: [mean_tpot_ms, output_throughput]
    """


@pytest.fixture(scope="module")
def whole(tmp_path_factory, worker):
    folder = tmp_path_factory.mktemp("whole")
    path = folder / "whole.yaml"
    path.write_text(dedent(TEXT))
    study = read_study(path, load_registry(), ())
    out = StudyFolder(folder / "out")
    seen = run_study(study, out, load_registry(), workers=[worker])
    return out, seen, analyse(study, out.cells(), seen, out.refusals())


def test_the_second_run_of_an_equal_pair_differs_by_its_noise_alone(whole):
    _, seen, findings = whole
    first, second = (
        next(o for o in seen if (o.repeat, o.replica, o.cell) == (0, replica, findings.baseline))
        for replica in (0, 1)
    )
    assert first.workload_sha256 == second.workload_sha256
    assert first.chosen == second.chosen
    assert 0 < abs(first.values["mean_tpot_ms"] / second.values["mean_tpot_ms"] - 1) < 0.05
    assert [floor.num_pairs for floor in findings.noise] == [4, 4]


def test_a_slow_engine_is_found_and_a_policy_that_evicts_nothing_is_inert(whole):
    _, _, findings = whole
    slow = {e.metric: e for e in findings.effects if e.what == "engine=slow"}
    assert slow["mean_tpot_ms"].verdict == "worse"
    assert slow["mean_tpot_ms"].estimate.low > 0
    assert slow["output_throughput"].estimate.high < 0
    idle = [e for e in findings.effects if e.what == "eviction=arc"]
    assert {one.verdict for one in idle} == {"inert"}
    cell = [c for c in findings.contrasts if c.what == "engine=plain,eviction=arc"]
    assert {one.verdict for one in cell} == {"inert"}


def test_findings_are_written_and_read_back(whole):
    folder, _, findings = whole
    folder.write_findings(findings)
    assert folder.findings() == findings
