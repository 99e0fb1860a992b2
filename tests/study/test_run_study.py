"""Studies that really run: fresh processes, failures, resuming after a kill."""

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from textwrap import dedent

import pytest

from interlock.conf.hydra_edge import compose
from interlock.core.assemble import build_engine
from interlock.core.errors import ConfigError, RunFolderError
from interlock.core.registry import load_registry
from interlock.driver.run import make_entries, serve
from interlock.study import expected_time
from interlock.study.analyse import analyse
from interlock.study.cli import main
from interlock.study.cores import available_cores, core_sets
from interlock.study.end_processes import bearing
from interlock.study.folder import StudyFolder
from interlock.study.job import Job
from interlock.study.metric_names import SLOTS, metric_problem
from interlock.study.order import block_seed
from interlock.study.plan import plan_study
from interlock.study.read_study import read_study
from interlock.study.report.plot_cells import curves_plot
from interlock.study.report.write import results_of
from interlock.study.run_study import run_study
from tests.full_disk import full_disk
from tests.study.endless import ENDLESS, run_under_way

ROOT = Path(__file__).parents[2]
FIXED = """
    base: [executor=fixed, workload.num_requests=6, workload.source=random]
    factors:
      cache: [none, radix]
      spec: {none: [spec=none], ngram: [spec=ngram, spec.num_drafts=3]}
    repeats: 2
    metrics: [mean_ttft_ms, prefix_cache_hit_rate]
    """


def study_in(folder: Path, text: str, *overrides: str):
    path = folder / "mine.yaml"
    path.write_text(dedent(text))
    return read_study(path, load_registry(), overrides)


def run(study, folder: Path, **options):
    return run_study(study, StudyFolder(folder), load_registry(), **options)


@pytest.fixture(scope="module")
def fixed(tmp_path_factory, worker):
    folder = tmp_path_factory.mktemp("fixed")
    study = study_in(folder, FIXED)
    return study, StudyFolder(folder / "out"), run(study, folder / "out", workers=[worker])


def test_every_cell_of_a_block_serves_the_same_requests_with_the_same_seeds(fixed):
    _, folder, seen = fixed
    assert len(seen) == 2 * (4 + 1)
    assert not [one.failure for one in seen if one.failure]
    for repeat in range(2):
        block = [one for one in seen if one.repeat == repeat]
        assert len({one.workload_sha256 for one in block}) == 1
        runs = [
            json.loads((folder.run_folder(o.cell, repeat, o.replica) / "run.json").read_text())
            for o in block
        ]
        assert {one["seed"] for one in runs} == {block_seed(0, repeat)}
    assert len({one.workload_sha256 for one in seen}) == 2
    assert [one.place for one in seen] == list(range(10))


def test_the_second_run_of_the_baseline_equals_the_first_in_virtual_time(fixed):
    _, _, seen = fixed
    for repeat in range(2):
        pair = [o for o in seen if o.repeat == repeat and o.cell == "cache=none,spec=none"]
        assert sorted(one.replica for one in pair) == [0, 1]
        assert pair[0].values == pair[1].values


def test_no_cache_is_carried_from_one_run_to_the_next(fixed):
    """The hit rate of a block's cell is that of the cell run alone, whatever ran before it."""
    _, folder, seen = fixed
    cell = next(one for one in folder.cells() if one.id == "cache=radix,spec=ngram")
    config = compose([*cell.overrides, f"seed={block_seed(0, 1)}"], load_registry())
    engine = build_engine(config)
    records = serve(engine, make_entries(config, engine), progress=False)
    rate = sum(r.cached_tokens for r in records) / sum(r.num_prompt_tokens for r in records)
    one = next(one for one in seen if (one.cell, one.repeat) == (cell.id, 1))
    assert one.values["prefix_cache_hit_rate"] == pytest.approx(rate)


def test_the_folder_reads_back_what_was_written(fixed):
    study, folder, seen = fixed
    assert folder.study() == study
    assert folder.observations() == seen
    manifest = folder.manifest()
    assert manifest["state"] == "done"
    assert len(manifest["workload_sha256"]["0"]) == 1
    assert folder.run_folder(seen[0].cell, seen[0].repeat, seen[0].replica).is_dir()


def test_every_figure_of_a_run_is_a_metric_that_a_study_may_name(fixed):
    _, folder, _ = fixed
    summaries = [json.loads(path.read_text()) for path in folder.path.rglob("summary.json")]
    keys = {key for one in summaries for key, value in leaves(one) if not isinstance(value, str)}
    keys = {key for key in keys if not key.startswith("speculation.plain_step_ms.")}
    assert not [problem for key in keys if (problem := metric_problem(key, replay=False))]
    assert {f"kv_memory.{name}" for name in SLOTS} <= keys


def leaves(tree: dict, prefix: str = ""):
    for key, value in tree.items():
        if isinstance(value, dict):
            yield from leaves(value, f"{prefix}{key}.")
        elif not isinstance(value, list):
            yield prefix + key, value


def test_a_study_that_is_done_runs_nothing_again_and_another_one_is_refused(fixed, tmp_path):
    study, folder, seen = fixed
    told = []
    assert run(study, folder.path, told=lambda *all_: told.append(all_)) == seen
    assert not told
    other = study_in(tmp_path, FIXED, "cache.page_size=32", "study.name=mine")
    with pytest.raises(ConfigError) as caught:
        run(other, folder.path)
    assert "is a study of something else" in caught.value.problems[0]
    assert "base: cache.page_size=32 is only now" in caught.value.problems
    patient = replace(study, timeout_s=600.0)
    assert run(patient, folder.path) == seen
    assert folder.study().timeout_s == 600.0
    assert run(study, folder.path) == seen
    (tmp_path / "x").mkdir()
    (tmp_path / "x" / "thesis.txt").write_text("mine")
    with pytest.raises(ConfigError, match="holds something else than a study"):
        run(study, tmp_path / "x")


def test_a_refused_cell_is_listed_with_its_reason_and_the_others_run(tmp_path, worker):
    study = study_in(
        tmp_path,
        """
        base: [executor=fixed, workload.num_requests=2]
        factors:
          spec: [none, ngram]
          drafts: {usual: [], "5": [spec.num_drafts=5]}
        repeats: 1
        """,
    )
    seen = run(study, tmp_path / "out", workers=[worker])
    (refusal,) = StudyFolder(tmp_path / "out").refusals()
    assert refusal.cell.id == "spec=none,drafts=5"
    assert "no option of spec=none named 'num_drafts'" in refusal.problems[0]
    assert {one.cell for one in seen if not one.failure} == {
        "spec=none,drafts=usual", "spec=ngram,drafts=usual", "spec=ngram,drafts=5"
    }  # fmt: skip


def test_a_cell_that_fails_says_why_and_can_be_tried_again(tmp_path, worker):
    lines = tmp_path / "prompts.jsonl"
    study = study_in(
        tmp_path,
        f"""
        base: [executor=fixed]
        factors:
          traffic:
            made: [workload.num_requests=2]
            mine: [workload=prompts, 'workload.path="{lines}"']
        repeats: 1
        """,
    )
    run_here = partial(run, study, tmp_path / "out", workers=[worker])
    seen = run_here()
    (failed,) = [one for one in seen if one.failure]
    assert (failed.cell, failed.values) == ("traffic=mine", {})
    assert str(lines) in failed.failure
    lines.write_text('{"prompt_token_ids": [5, 6, 7]}\n')
    assert [one for one in run_here() if one.failure] == [failed]
    assert not [o for o in run_here(retry_failed=True) if o.failure]


def endless(folder: Path, timeout_s: float):
    os.mkfifo(folder / "pipe")
    return study_in(folder, ENDLESS.format(pipe=folder / "pipe", timeout_s=timeout_s))


def wait_for_runs(folder: Path, count: int) -> None:
    deadline = time.monotonic() + 120
    while len(list(folder.glob("cells/*/*/observation.json"))) < count:
        assert time.monotonic() < deadline
        time.sleep(0.02)


def times_of(folder: Path) -> dict[Path, int]:
    return {path: path.stat().st_mtime_ns for path in folder.glob("cells/*/*/observation.json")}


@pytest.mark.usefixtures("without_figures")
def test_a_study_that_is_killed_or_interrupted_goes_on_with_what_it_has(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    study_in(tmp_path, FIXED)
    out = tmp_path / "out"
    monkeypatch.setenv("A_TEST_STARTED", str(tmp_path))
    command = [sys.executable, str(ROOT / "run.py"), "study", "mine.yaml", "--out", "out"]
    first = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    wait_for_runs(out, 2)
    first.kill()
    first.wait()
    killed = times_of(out)
    assert 2 <= len(killed) < 10

    def interrupt() -> None:
        wait_for_runs(out, len(killed) + 1)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt, daemon=True).start()
    jobs = ["--jobs", "2"] if len(available_cores()) > 1 else []
    assert main(["--resume", "out", *jobs], load_registry()) == 130
    interrupted = times_of(out)
    told = f"stopped; {len(interrupted)} of 10 runs are done and kept in out; go on with: "
    told += " ".join(["interlock study --resume out", *jobs])
    assert told in capsys.readouterr().out
    assert len(StudyFolder(out).observations()) == len(interrupted)
    assert not bearing(f"A_TEST_STARTED={tmp_path}") - {os.getpid()}
    assert len(killed) < len(interrupted) <= 10
    assert main(["--resume", "out"], load_registry()) == 0
    seen = StudyFolder(out).observations()
    assert sorted(one.place for one in seen) == list(range(10))
    assert not [one.failure for one in seen if one.failure]
    ended = times_of(out)
    assert {path: ended[path] for path in killed} == killed
    assert {path: ended[path] for path in interrupted} == interrupted
    assert StudyFolder(out).manifest()["study_file"] == (tmp_path / "mine.yaml").read_text()
    told = (
        r"^out/study\.json: cannot be written: File too large; 10 of 10 runs are done and kept in "
    )
    told += r"out; once it can be written, go on with: interlock study --resume out$"
    with full_disk(), pytest.raises(RunFolderError, match=told):
        main(["--resume", "out"], load_registry())
    assert len(StudyFolder(out).observations()) == 10


def test_a_run_whose_process_is_killed_fails_alone_with_the_signal(tmp_path, worker):
    """As the system does when memory runs out."""
    study = endless(tmp_path, timeout_s=300)
    cells = {cell.id: cell for cell in plan_study(study, load_registry()).cells}

    def job(name: str, **more) -> Job:
        config = compose(cells[f"traffic={name}"].overrides)
        return Job(config, str(tmp_path / name), (), timed=False, **more)

    thread = threading.Thread(target=worker.run, args=(job("never"),))
    thread.start()
    os.kill(run_under_way(tmp_path / "never"), signal.SIGKILL)
    thread.join(60)
    assert worker.run(job("made"))
    problem = json.loads((tmp_path / "never" / "failed.json").read_text())["problem"]
    assert problem.startswith("the process was killed by SIGKILL (the system does so when memory")
    assert (tmp_path / "made" / "run.json").is_file()
    assert not (tmp_path / "made" / "failed.json").exists()


def test_a_run_that_hangs_is_ended_while_others_go_on_each_on_a_core_of_its_own(tmp_path):
    study = endless(tmp_path, timeout_s=15)
    cores = core_sets(min(2, len(available_cores())), None)
    seen = run(study, tmp_path / "out", cores=cores)
    folder = StudyFolder(tmp_path / "out")
    assert len(seen) == 3
    (hung,) = [one for one in seen if one.failure]
    assert hung.cell == "traffic=never"
    assert hung.failure.startswith("it had not ended after timeout_s=15 and was killed")
    had = [json.loads(path.read_text()) for path in folder.path.rglob("run.json")]
    assert len(had) == 2
    assert all(tuple(one["device"]["may_use_cores"]) in cores for one in had if cores != ((),))
    assert folder.manifest()["state"] == "done"
    assert folder.study() == study
    if len(cores) > 1:
        assert folder.manifest()["jobs"] == 2


def test_jobs_get_cores_of_their_own_and_more_than_fit_are_refused():
    cores = available_cores()
    assert core_sets(1, 4) == ((),)
    assert core_sets(len(cores), None) == tuple((core,) for core in cores) or len(cores) == 1
    with pytest.raises(ConfigError, match=rf"cores, of which .* {len(cores)}; --jobs 1 fits"):
        core_sets(2, len(cores))
    with pytest.raises(ConfigError, match="--jobs 0: "):
        core_sets(0, 1)


CURVE = """
    base: [executor=fixed, workload.num_requests=6, workload.arrivals=poisson]
    factors: {budget: {small: [scheduler.budget_tokens=64], large: [scheduler.budget_tokens=512]}}
    design: {name: latency_curve, over: workload.rate, values: [2, 200]}
    repeats: 1
    metrics: [mean_ttft_ms, output_throughput]
    """


def test_a_latency_curve_runs_every_composition_at_each_load_and_draws_it(tmp_path, worker):
    study = study_in(tmp_path, CURVE)
    assert [level.overrides for level in study.factor("rate").levels] == [
        ("workload.rate=2",), ("workload.rate=200",)
    ]  # fmt: skip
    seen = run(study, tmp_path / "out", workers=[worker])
    first = {one.cell: one.values["mean_ttft_ms"] for one in seen if one.replica == 0}
    assert len(first) == 4
    for budget in ("small", "large"):
        assert first[f"budget={budget},rate=200"] > first[f"budget={budget},rate=2"]
    folder = StudyFolder(tmp_path / "out")
    folder.write_findings(analyse(study, folder.cells(), seen))
    assert curves_plot(results_of(folder)) is not None


def test_a_dry_run_shows_cells_and_time_and_leaves_nothing(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.yaml").write_text(dedent(FIXED))
    assert main(["mine.yaml", "--dry-run", "study.repeats=3"], load_registry()) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "4 cells x 3 repeats" in shown
    assert re.search(r"expected: \d+\.\d to \d+\.\d minutes for 15 runs, of which ", shown)
    assert "measured in 4 of 4 cells" in shown
    assert [path.name for path in tmp_path.iterdir()] == ["mine.yaml"]


def test_a_dry_run_of_long_runs_measures_one(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(expected_time, "PATIENCE_S", 0.0)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.yaml").write_text(dedent(FIXED))
    assert main(["mine.yaml", "--dry-run"], load_registry()) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "measured in 1 of 4 cells, and 0.0 s to start" in shown


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("study.json", '{"study": {}}'),
        ("study.json", '{"study": 3, "cells": 4}'),
        ("observations.jsonl", "garbage"),
        ("observations.jsonl", "[1]"),
        ("analysis.json", "{}"),
    ],
)
def test_a_damaged_file_of_a_study_is_named(tmp_path, name, text):
    (tmp_path / name).write_text(text)
    folder = StudyFolder(tmp_path)
    read = {"study.json": folder.study, "observations.jsonl": folder.observations}
    with pytest.raises(RunFolderError, match=name):
        read.get(name, folder.findings)()


def test_a_folder_where_a_study_is_at_work_is_refused_to_a_second_one_until_it_ends(tmp_path):
    study, folder = study_in(tmp_path, FIXED), StudyFolder(tmp_path / "out")
    told = "out: a study that runs now is at work there; wait until it has ended, or give --out"
    with folder.alone(), pytest.raises(ConfigError, match=told):
        run(study, tmp_path / "out")
    with folder.alone():
        assert not list(folder.path.iterdir())
    (tmp_path / "file").touch()
    with pytest.raises(RunFolderError, match="file: cannot be made: File exists"):
        run(study, tmp_path / "file")
