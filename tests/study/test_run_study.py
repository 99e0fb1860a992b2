"""Studies that really run: fresh processes, failures, resuming after a kill."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from textwrap import dedent

import pytest

from interlock.conf.hydra_edge import compose
from interlock.core.assemble import build_engine
from interlock.core.errors import ConfigError, RunFolderError
from interlock.core.registry import load_registry
from interlock.driver.run import make_entries, serve
from interlock.study.cli import main
from interlock.study.folder import StudyFolder
from interlock.study.job import Job
from interlock.study.metric_names import SLOTS, metric_problem
from interlock.study.order import block_seed
from interlock.study.read_study import read_study
from interlock.study.run_study import run_study
from interlock.study.worker import Worker

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
def fixed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("fixed")
    study = study_in(folder, FIXED)
    return study, StudyFolder(folder / "out"), run(study, folder / "out")


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


def test_a_refused_cell_is_listed_with_its_reason_and_the_others_run(tmp_path):
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
    seen = run(study, tmp_path / "out")
    (refusal,) = StudyFolder(tmp_path / "out").refusals()
    assert refusal.cell.id == "spec=none,drafts=5"
    assert "no option of spec=none named 'num_drafts'" in refusal.problems[0]
    assert {one.cell for one in seen if not one.failure} == {
        "spec=none,drafts=usual", "spec=ngram,drafts=usual", "spec=ngram,drafts=5"
    }  # fmt: skip


def test_a_cell_that_fails_says_why_and_can_be_tried_again(tmp_path):
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
    seen = run(study, tmp_path / "out")
    (failed,) = [one for one in seen if one.failure]
    assert (failed.cell, failed.values) == ("traffic=mine", {})
    assert str(lines) in failed.failure
    lines.write_text('{"prompt_token_ids": [5, 6, 7]}\n')
    assert [one for one in run(study, tmp_path / "out") if one.failure] == [failed]
    assert not [o for o in run(study, tmp_path / "out", retry_failed=True) if o.failure]


SLOW = """
    base: [executor=fixed, workload.num_requests=6]
    factors: {{cache: [none, radix]}}
    repeats: {repeats}
    """


def command(*arguments: str, cwd: Path) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, str(ROOT / "run.py"), "study", *arguments],
        cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip


def wait_for_runs(folder: Path, count: int) -> None:
    deadline = time.monotonic() + 120
    while len(list(folder.glob("cells/*/*/observation.json"))) < count:
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_a_study_that_is_killed_goes_on_with_what_it_has(tmp_path, how):
    study_in(tmp_path, SLOW.format(repeats=4))
    out = tmp_path / "out"
    first = command("mine.yaml", "--out", "out", cwd=tmp_path)
    wait_for_runs(out, 2)
    first.send_signal(how)
    said = first.communicate(timeout=60)[0]
    if how == signal.SIGINT:
        assert first.returncode == 130, said
        assert "go on with: interlock study --resume out" in said
    done = {path: path.stat().st_mtime_ns for path in out.glob("cells/*/*/observation.json")}
    assert 2 <= len(done) < 12
    again = command("--resume", "out", cwd=tmp_path)
    said = again.communicate(timeout=120)[0]
    assert again.returncode == 0, said
    seen = StudyFolder(out).observations()
    assert len(seen) == 12
    manifest = StudyFolder(out).manifest()
    assert manifest["study_file"] == (tmp_path / "mine.yaml").read_text()
    assert not [one.failure for one in seen if one.failure]
    assert {path: path.stat().st_mtime_ns for path in done} == done
    assert sorted(one.place for one in seen) == list(range(12))


def test_a_run_whose_process_is_killed_fails_alone_with_the_signal(tmp_path):
    """As the system does when memory runs out."""
    config = compose(["executor=fixed", "workload.num_requests=5000"], load_registry())
    with Worker() as worker:
        long = Job(config, str(tmp_path / "long"), (), timed=False)
        thread = threading.Thread(target=worker.run, args=(long,))
        thread.start()
        os.kill(child_of(worker), signal.SIGKILL)
        thread.join(60)
        short = replace(long, config=compose(["executor=fixed"]), folder=str(tmp_path / "short"))
        assert worker.run(short)
    problem = json.loads((tmp_path / "long" / "failed.json").read_text())["problem"]
    assert problem.startswith("the process was killed by SIGKILL (the system does so when memory")
    assert (tmp_path / "short" / "run.json").is_file()
    assert not (tmp_path / "short" / "failed.json").exists()


def test_a_run_that_takes_too_long_is_ended_and_the_next_one_runs(tmp_path):
    config = compose(["executor=fixed", "workload.num_requests=20000"], load_registry())
    with Worker() as worker:
        long = Job(config, str(tmp_path / "long"), (), timed=False, timeout_s=0.01)
        assert worker.run(long)
        short = replace(
            long, config=compose(["executor=fixed"]), folder=str(tmp_path / "short"), timeout_s=300
        )
        assert worker.run(short)
    problem = json.loads((tmp_path / "long" / "failed.json").read_text())["problem"]
    assert problem.startswith("it had not ended after timeout_s=0.01 and was killed")
    assert (tmp_path / "short" / "run.json").is_file()
    assert not (tmp_path / "short" / "failed.json").exists()


def test_the_time_that_a_study_file_gives_each_run_makes_failures_and_no_study_hang(tmp_path):
    study = study_in(
        tmp_path,
        """
        base: [executor=fixed, workload.num_requests=20000]
        factors: {cache: [none, radix]}
        repeats: 1
        timeout_s: 0.01
        """,
    )
    assert study.timeout_s == 0.01
    seen = run(study, tmp_path / "out")
    assert len(seen) == 3
    assert all("timeout_s=0.01 and was killed" in one.failure for one in seen)
    assert StudyFolder(tmp_path / "out").manifest()["state"] == "done"
    assert StudyFolder(tmp_path / "out").study() == study


def child_of(worker: Worker) -> int:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        if worker.process_id is not None:
            at = Path(f"/proc/{worker.process_id}/task/{worker.process_id}/children")
            if at.is_file() and (found := at.read_text().split()):
                return int(found[0])
        time.sleep(0.02)
    raise AssertionError("no run began")


def test_a_dry_run_shows_cells_and_time_and_leaves_nothing(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.yaml").write_text(dedent(FIXED))
    assert main(["mine.yaml", "--dry-run"], load_registry()) == 0
    shown = capsys.readouterr().out
    assert "4 cells x 2 repeats" in shown
    assert "expected: about" in shown
    assert [path.name for path in tmp_path.iterdir()] == ["mine.yaml"]


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
