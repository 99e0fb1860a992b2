"""Runs of a study through a Hydra launcher: joblib, submitit (Slurm, or its local executor), Ray.

The study starts this module as a Hydra application of its own, whose jobs are runs: `place=0,1,2`
are numbers in the study's order. A job takes cores that no other job on its host holds, does its
run in a fresh process on them, and leaves the run's folder; the study reads those when all ended.
"""

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import gettempdir

import hydra
from hydra.core.config_store import ConfigStore
from hydra.core.plugins import Plugins
from hydra.plugins.launcher import Launcher
from omegaconf import DictConfig

from interlock.conf.hydra_edge import HYDRA_ARGUMENTS
from interlock.core.errors import ConfigError
from interlock.core.registry import load_registry
from interlock.study.cores import available_cores
from interlock.study.folder import StudyFolder
from interlock.study.order import run_order
from interlock.study.plan import StudyPlan, judge
from interlock.study.runs import Runs
from interlock.study.worker import Worker

PACKAGES = {"joblib": "hydra-joblib-launcher", "submitit": "hydra-submitit-launcher",
            "ray": "hydra-ray-launcher"}  # fmt: skip
LOG = "launcher.log"


@dataclass
class LaunchedRun:
    """What a job is told."""

    folder: str = ""
    place: int = 0
    threads: int = 1


def launch(
    folder: StudyFolder, launcher: Mapping[str, str], places: Sequence[int], threads: int
) -> None:
    """Make these runs through the launcher and return when all have ended.

    Raises ConfigError where its plugin is not installed or cannot be started, with its last words.
    """
    options = dict(launcher)
    name = options.pop("name")
    _require(name)
    where = folder.path.resolve()
    command = [sys.executable, "-m", "interlock.study.hydra_launch", "-m"]
    command += [f"hydra/launcher={name}", f"hydra.sweep.dir={where / 'launcher'}"]
    command += [f"hydra.launcher.{key}={value}" for key, value in options.items()]
    command += [f'folder="{where}"', f"threads={threads}"]
    command += [f"place={','.join(map(str, places))}"]
    log = where / LOG
    with log.open("wb") as said:
        started = subprocess.Popen(command, stdout=said, stderr=said, stdin=subprocess.DEVNULL)
        try:
            status = started.wait()
        except BaseException:
            started.terminate()
            started.wait()
            raise
    if status:
        last = [line for line in log.read_text(errors="replace").splitlines() if line.strip()][-3:]
        raise ConfigError(f"launcher={name} ended with status {status}: {' / '.join(last)}")


def _require(name: str) -> None:
    package = PACKAGES.get(name.split("_")[0])
    modules = {plugin.__module__ for plugin in Plugins.instance().discover(Launcher)}
    here = any(f"hydra_{name.split('_')[0]}_launcher" in module for module in modules)
    if package is not None and not here:
        raise ConfigError(
            f"launcher={name} needs the package {package}, which is not installed: "
            f'pip install "interlock[{"ray" if name.startswith("ray") else "launchers"}]"'
        )


def do_place(told: LaunchedRun) -> None:
    """Make one run of a study, on cores of its own."""
    folder = StudyFolder(told.folder)
    study = folder.study()
    place = run_order(folder.cells(), study.repeats, study.seed)[told.place]
    manifest = folder.manifest()
    judged = [judge(cell, load_registry()) for cell in (folder.cells()[0], place.cell)]
    judged = [one.as_recorded(manifest) for one in judged]
    runs = Runs(StudyPlan(study, tuple(judged)), folder, manifest["started_s"])
    with cores_held(told.threads) as cores, Worker(cores) as worker:
        runs.run(place, worker)


@contextmanager
def cores_held(count: int) -> Iterator[tuple[int, ...]]:
    """So many cores that no other process holds in this way; waits until there are."""
    import fcntl

    cores = available_cores()
    if count > len(cores):
        raise ConfigError(f"a run needs {count} cores; a job of the launcher has {len(cores)}")
    locks = Path(gettempdir()) / f"interlock-cores-{os.getuid()}"
    locks.mkdir(exist_ok=True)
    while True:
        held: dict[int, int] = {}
        for core in cores:
            file = os.open(locks / str(core), os.O_RDWR | os.O_CREAT, 0o600)
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                held[core] = file
            except BlockingIOError:
                os.close(file)
            if len(held) == count:
                break
        if len(held) == count:
            break
        for file in held.values():
            os.close(file)
        time.sleep(0.05)
    try:
        yield tuple(held)
    finally:
        for file in held.values():
            with suppress(OSError):
                os.close(file)


ConfigStore.instance().store(name="launched_run", node=LaunchedRun)


@hydra.main(config_path=None, config_name="launched_run", **HYDRA_ARGUMENTS)
def main(told: DictConfig) -> None:
    """One job."""
    do_place(LaunchedRun(str(told.folder), int(told.place), int(told.threads)))


if __name__ == "__main__":
    main()
