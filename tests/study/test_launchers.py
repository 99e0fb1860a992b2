"""Hydra launchers: cells beside each other, on cores of their own, with the results of a sweep."""

import importlib.util
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from textwrap import dedent

import pytest

from interlock.conf.hydra_launchers import EXTRAS, require_launcher
from interlock.core.errors import ConfigError
from interlock.core.registry import load_registry
from interlock.driver import cli
from interlock.study.core_locks import cores_held, pinned
from interlock.study.cores import available_cores
from interlock.study.end_processes import bearing
from interlock.study.folder import StudyFolder
from interlock.study.job import ENDED
from interlock.study.launched_run import LaunchedRun, _workers, do_place
from interlock.study.order import run_order
from interlock.study.plan import plan_study
from interlock.study.read_study import read_study
from interlock.study.run_study import run_study
from interlock.study.runs import Runs
from interlock.study.study_manifest import begin
from tests.study.endless import ENDLESS, run_under_way, wait_for

CELLS = ("executor=fixed", "workload.num_requests=3", "workload.output_tokens=8",
         "progress=false", "cache=none,radix")  # fmt: skip
STUDY = """
base: [executor=fixed, workload.num_requests=2]
factors: {cache: [none, radix]}
repeats: 1
"""
pytestmark = pytest.mark.usefixtures("without_figures")
ROOT = Path(__file__).parents[2]
OWN = {"submitit_local": ("hydra.launcher.timeout_min=5",)}


def sweep(monkeypatch: pytest.MonkeyPatch, folder: Path, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["interlock", "-m", *arguments, f"hydra.sweep.dir={folder}"])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    return int(ended.value.code or 0)


def outputs(run: Path) -> list[list[int]]:
    lines = (run / "requests.jsonl").read_text().splitlines()
    return [json.loads(line)["output_token_ids"] for line in lines]


def held(run: Path) -> tuple[set[int], float, float]:
    """The cores that a run had, and when it began and ended."""
    began_s = json.loads((run / "swept.json").read_text())["began_s"]
    cores = json.loads((run / "run.json").read_text())["device"]["may_use_cores"]
    return set(cores), began_s, (run / "run.json").stat().st_mtime


@pytest.fixture(scope="module")
def serial(tmp_path_factory: pytest.TempPathFactory) -> StudyFolder:
    folder = tmp_path_factory.mktemp("serial")
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "matplotlib", None)
        assert sweep(patch, folder, *CELLS) == 0
    return StudyFolder(folder)


@pytest.fixture(params=["joblib", "submitit_local", "ray"])
def launcher(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    kind = request.param.split("_")[0]
    package, extra = EXTRAS[kind]
    if importlib.util.find_spec(f"hydra_plugins.hydra_{kind}_launcher") is None:
        pytest.skip(f"{package} is not installed: pip install 'interlock[{extra}]'")
    pytest.importorskip(kind)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    yield request.param
    if kind == "ray":
        import ray

        ray.shutdown()
    elif kind == "joblib":
        from joblib.externals.loky import get_reusable_executor

        get_reusable_executor().shutdown()


def test_a_launcher_gives_the_tokens_and_the_report_of_a_serial_sweep_on_cores_of_their_own(
    launcher, serial, monkeypatch, tmp_path
):
    options = (f"hydra/launcher={launcher}", *OWN.get(launcher, ()))
    assert sweep(monkeypatch, tmp_path / "launched", *CELLS, *options) == 0
    launched = StudyFolder(tmp_path / "launched")
    assert (launched.path / "report.html").is_file()
    assert launched.study().launcher == {"name": launcher}
    assert f"hydra/launcher={launcher} cache=none,radix" in launched.manifest()["command"]
    assert [one.cell for one in launched.observations()] == ["cache=none", "cache=radix"]
    spans = []
    for alone, beside in zip(serial.observations(), launched.observations(), strict=True):
        assert (alone.cell, alone.values) == (beside.cell, beside.values)
        run = launched.run_folder(beside.cell, 0)
        assert outputs(run) == outputs(serial.run_folder(alone.cell, 0))
        spans.append(held(run.resolve()))
    (first, began_s, ended_s), (second, other_began_s, other_ended_s) = spans
    assert len(first) == len(second) == 1
    if began_s < other_ended_s and other_began_s < ended_s:
        assert not first & second


def test_a_job_of_a_study_makes_its_run_on_cores_that_it_holds_and_the_study_takes_it(
    tmp_path, worker
):
    (tmp_path / "mine.yaml").write_text(STUDY)
    study = read_study(tmp_path / "mine.yaml", load_registry())
    folder, plan = StudyFolder(tmp_path / "out"), plan_study(study, load_registry())
    runs = Runs(plan, folder, begin(folder, plan))
    told = partial(LaunchedRun, str(folder.path), threads=1, stop=str(tmp_path / "stop"))
    do_place(told(2))
    (server,) = _workers
    assert server.pid is not None
    first = server.pid
    do_place(told(1))
    assert (server.pid, server.closed) == (first, False)  # two runs, and one start of a process
    for number in (2, 1):
        place = run_order(plan.cells, study.repeats, study.seed)[number]
        assert runs.has_ended(place)
        runs.restore(place, retry_failed=False)
        runs.take(place)
        seen = runs.observed[-1]
        assert (seen.cell, seen.repeat, seen.failure) == (place.cell.id, 0, "")
        manifest = json.loads((folder.path / place.folder / "run.json").read_text())
        assert len(manifest["device"]["may_use_cores"]) == 1
    done = {one.place for one in run_study(study, folder, load_registry(), workers=[worker])}
    assert done == {0, 1, 2}


def test_a_job_stops_when_its_study_was_stopped_and_leaves_no_mark_of_an_end(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "mine.yaml").write_text(
        dedent(ENDLESS).format(pipe=tmp_path / "pipe", timeout_s=300)
    )
    study = read_study(tmp_path / "mine.yaml", load_registry())
    folder, plan = StudyFolder(tmp_path / "out"), plan_study(study, load_registry())
    runs, stop = Runs(plan, folder, begin(folder, plan)), tmp_path / "stop"
    order = run_order(plan.cells, study.repeats, study.seed)
    place = next(one for one in order if one.cell.id == "traffic=never")
    told = LaunchedRun(str(folder.path), place.number, threads=1, stop=str(stop))
    job = threading.Thread(target=do_place, args=(told,))
    job.start()
    run_under_way(folder.path / place.folder)
    stop.touch()
    job.join(30)
    assert not job.is_alive()
    assert not runs.has_ended(place)
    runs.empty(place)
    do_place(told)  # begins after the stop, as one that waited in a queue
    assert not (folder.path / place.folder).exists()


HANGING = """
base: [executor=fixed]
factors:
  traffic:
    made: [workload.num_requests=2]
    one: [workload=prompts, 'workload.path="{folder}/one"']
    two: [workload=prompts, 'workload.path="{folder}/two"']
repeats: 1
launcher: {{name: joblib, n_jobs: "2"}}
"""
"""Two runs that wait until somebody writes their requests into a pipe."""


@pytest.fixture
def hanging(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[subprocess.Popen[str]]:
    """A study of these, started; its folder is `out`."""
    pytest.importorskip("joblib")
    pytest.importorskip("hydra_plugins.hydra_joblib_launcher")
    monkeypatch.setenv("A_TEST_STARTED", str(tmp_path))
    for name in ("one", "two"):
        os.mkfifo(tmp_path / name)
    (tmp_path / "mine.yaml").write_text(HANGING.format(folder=tmp_path))
    command = [sys.executable, str(ROOT / "run.py"), "study", "mine.yaml", "--out", "out"]
    with subprocess.Popen(
        command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as study:
        yield study
        study.kill()


def cores_of(process: int) -> list[int]:
    return sorted(os.sched_getaffinity(process))


def test_runs_beside_each_other_share_no_core_and_a_stop_keeps_the_one_that_ended(
    hanging, tmp_path
):
    folder = StudyFolder(tmp_path / "out")
    one, two = (folder.run_folder(f"traffic={name}", 0) for name in ("one", "two"))
    together = len(available_cores()) > 1
    if together:
        had, others = (cores_of(run_under_way(run, 120)) for run in (one, two))
        assert len(had) == len(others) == 1
        assert not set(had) & set(others)
        (tmp_path / "one").write_text('{"prompt_token_ids": [5, 6, 7]}\n')
        wait_for(one / ENDED)
        recorded = json.loads((one / "run.json").read_text())["device"]["may_use_cores"]
        assert recorded == had
        assert not (two / ENDED).exists()  # it was under way all the time that the other was
    else:
        run_under_way(folder.run_folder("traffic=[ot]*", 0), 120)
    hanging.terminate()
    said = hanging.communicate(timeout=60)[0]
    assert hanging.returncode == 143
    ended = len(list(folder.path.glob(f"cells/*/*/{ENDED}")))
    assert len(folder.observations()) == ended
    assert "Traceback" not in said
    assert "Error" not in said
    assert f"stopped; {ended} of 4 runs" in said
    assert "go on with: interlock study --resume out" in said
    assert not bearing(f"A_TEST_STARTED={tmp_path}") - {os.getpid()}
    if not together:
        pytest.skip("this process may use one core: no two runs were under way at once")


def test_cores_that_are_held_are_given_to_nobody_else_until_they_are_given_back():
    cores = available_cores()
    with cores_held(len(cores)) as held_cores:
        assert set(held_cores) == set(cores)
    if len(cores) == 1:
        pytest.skip("a machine of one core has none for a second run")
    with cores_held(1) as one, pinned(1) as other:
        assert not set(one) & set(other)
        assert available_cores() == list(other)
    assert available_cores() == cores


def test_more_cores_than_there_are_is_refused_in_place_of_waiting():
    count = len(available_cores())
    with pytest.raises(ConfigError, match=f"needs {count + 1} cores; a job of the launcher has"):
        with cores_held(count + 1):
            pass


def test_a_launcher_that_is_not_installed_says_what_to_install(monkeypatch):
    from hydra.core.plugins import Plugins

    monkeypatch.setattr(Plugins.instance(), "discover", lambda _kind: [])
    with pytest.raises(ConfigError, match=r"launcher=submitit_slurm needs the package hydra-sub.*"):
        require_launcher("submitit_slurm")
