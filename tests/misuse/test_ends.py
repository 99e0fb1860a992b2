"""How a run ends: Ctrl-C, folders that cannot be written, a report that nobody can read."""

import json
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from interlock.core.registry import load_registry
from tests.misuse.conftest import SHORT

ROOT = Path(__file__).parents[2]
FIXED = ("executor=fixed", "progress=false", "workload.num_requests=20", "workload.rate=1000")


@pytest.fixture
def at_step(monkeypatch):
    """Call something when the engine has run so many steps."""

    def install(number, action):
        steps = []

        def watch(_plan, _result):
            steps.append(1)
            if len(steps) == number:
                action()

        monkeypatch.setattr(load_registry(), "observers", [watch])

    return install


@pytest.fixture(autouse=True)
def _usual_ctrl_c():
    """Python's own handler: a suite that runs in the background inherits that Ctrl-C is ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def interrupt():
    signal.raise_signal(signal.SIGINT)


def test_ctrl_c_stops_after_the_step_and_leaves_the_whole_folder(run, at_step):
    at_step(5, interrupt)
    ran = run(*FIXED, "hydra.run.dir=run")
    assert (ran.status, ran.err) == (130, "interrupted\n")
    assert len((ran.folder / "steps.jsonl").read_text().splitlines()) == 5
    statuses = [line["status"] for line in ran.requests]
    assert len(statuses) == 20
    assert set(statuses) <= {"finished", "running", "waiting", "preempted"}
    assert ran.object("summary.json")["unfinished"] == 20 - statuses.count("finished") > 0
    assert ran.object("run.json")["num_requests"] == 20


def test_ctrl_c_ends_the_wait_for_an_arrival(run, at_step, tiny, tmp_path):
    path = tmp_path / "prompts.jsonl"
    late = {"prompt": "late", "arrival_s": 60}
    path.write_text("".join(json.dumps(x) + "\n" for x in ({"prompt": "a", "max_tokens": 1}, late)))
    at_step(1, threading.Timer(0.3, interrupt).start)
    arguments = (f"model={tiny}", "workload=prompts", f"workload.path={path}", "progress=false")
    ran = run(*arguments, "hydra.run.dir=run")
    assert ran.status == 130
    assert [line["status"] for line in ran.requests] == ["finished", "waiting"]


def test_ctrl_c_ends_a_sweep_and_not_only_its_job(run, at_step, tmp_path):
    at_step(3, interrupt)
    assert run("-m", *FIXED, "seed=1,2", "hydra.sweep.dir=sweep").status == 130
    assert [path.name[0] for path in (tmp_path / "sweep").glob("*-*")] == ["0"]


def test_a_second_ctrl_c_ends_the_run_at_once(run, at_step):
    at_step(2, lambda: (interrupt(), interrupt()))
    ran = run(*FIXED, "hydra.run.dir=run")
    assert (ran.status, ran.err) == (130, "interrupted\n")
    assert not (ran.folder / "run.json").exists()


def test_ctrl_c_stays_ignored_in_a_background_job(run, at_step):
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        at_step(2, interrupt)
        assert run(*FIXED, "hydra.run.dir=run").status == 0
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_run_folder_that_cannot_be_made_is_named_with_its_setting(run, tmp_path):
    (tmp_path / "file").write_text("")
    for setting in ("hydra.run.dir=file", "hydra.run.dir=file/below"):
        (problem,) = run(*FIXED, setting).problems
        assert problem.startswith("file")
        assert "hydra.run.dir" in problem
    (problem,) = run("-m", *FIXED, "seed=1,2", "hydra.sweep.dir=file/below").problems
    assert "hydra.sweep.dir" in problem


def test_a_folder_name_that_does_not_resolve_is_no_traceback(run):
    (problem,) = run(*FIXED, "hydra.run.dir=x/${nope}").problems
    assert "Interpolation key 'nope' not found" in problem


def test_too_little_memory_names_what_takes_less(run):
    for setting in ("scheduler.max_requests=1000000000000", "cache.num_pages=100000000000000"):
        (problem,) = run(*FIXED, setting, "hydra.run.dir=run").problems
        assert problem.startswith("there is not enough memory")
        assert "a smaller cache.num_pages" in problem


def in_a_shell(script):
    command = f'"{sys.executable}" "{ROOT / "run.py"}" {" ".join(FIXED)} hydra.run.dir=run'
    return ["bash", "-c", script.replace("RUN", command)]


@pytest.mark.parametrize(
    ("script", "status", "said"),
    [
        ("RUN | head -1; exit ${PIPESTATUS[0]}", 0, ""),
        ("RUN > /dev/full", 0, "the report cannot be printed"),
        ("ulimit -f 8; RUN", 1, "requests.jsonl: cannot be written: File too large"),
    ],
)
def test_an_end_without_room_or_reader_is_no_traceback(tmp_path, script, status, said):
    done = subprocess.run(
        in_a_shell(script), cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == status, done.stderr
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    assert (tmp_path / "run" / "run.json").exists() == (status == 0)


def test_the_short_commands_run_nothing_and_end_well(run, monkeypatch, tmp_path):
    for command in (["--cfg", "job"], ["--cfg", "hydra"], ["-h"]):
        assert run(*command).status == 0
    monkeypatch.setenv("COMP_LINE", "python run.py cache/index=r")
    assert run("-sc", "query=bash").out.split() == ["cache/index=radix"]
    (problem,) = run("--cfg", "job", "--info", "all").problems
    assert problem == "--cfg and --info are different commands; give one of them"
    (problem,) = run("--experimental-rerun", "x").problems
    assert "rerun=DIR" in problem
    assert not list(tmp_path.iterdir())


def test_every_shape_of_sweep_runs_and_only_common_mistakes_stop_it(run, tmp_path):
    pgsize = "no cache option named 'pgsize'; did you mean 'page_size'"
    for swept, problem in (
        ("cache.pgsize=1,2", pgsize),
        ("cache.page_size=0", "cache.page_size=0 is not from 1 to 512"),
    ):
        (found,) = run("-m", *FIXED, "spec=none,ngram", swept).problems
        assert found.startswith(problem)
    assert not list(tmp_path.iterdir())
    ran = run("-m", *FIXED, "cache.page_size=4,0", "spec=glob(n*)", "hydra.sweep.dir=sweep")
    assert ran.problems == ["cache.page_size=0 is not from 1 to 512"] * 2
    assert len(list((tmp_path / "sweep").glob("*/run.json"))) == 2
    assert len(list((tmp_path / "sweep").glob("*/refused.json"))) == 2


def test_a_run_of_one_command_writes_nothing_that_json_lacks(run, tiny):
    limits = (
        "limits.ttft_ms=1e-9",
        "sampling.logprobs=1",
        "spec=eagle",
        "scheduler.budget_tokens=1",
    )
    ran = run(f"model={tiny}", *SHORT, *limits, "hydra.run.dir=run")
    assert ran.status == 0
    assert ran.object("summary.json")["request_goodput"] == 0
    assert ran.object("run.json")["config"]["spec"]["name"] == "eagle"
    assert [len(line["logprobs"]) for line in ran.requests] == [
        len(line["output_token_ids"]) for line in ran.requests
    ]
