"""Runs of a study through a Hydra launcher: joblib, submitit (Slurm, or its local executor), Ray.

The study starts this module as a Hydra application of its own, whose jobs are runs: `place=0,1,2`
are numbers in the study's order. A job takes cores that no other job on its host holds, does its
run in a fresh process on them, and leaves the run's folder; the study reads those when all ended.
"""

import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import hydra
from hydra.core.config_store import ConfigStore
from omegaconf import DictConfig

from interlock.conf.hydra_edge import HYDRA_ARGUMENTS
from interlock.conf.hydra_launchers import require_launcher
from interlock.core.errors import ConfigError
from interlock.core.registry import load_registry
from interlock.study.composer import Composer
from interlock.study.core_locks import cores_held
from interlock.study.folder import StudyFolder
from interlock.study.order import run_order
from interlock.study.plan import StudyPlan, judge
from interlock.study.runs import Runs
from interlock.study.worker import Worker

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
    require_launcher(name)
    where = folder.path.resolve()
    command = [sys.executable, "-m", "interlock.study.hydra_launch", "-m"]
    command += [f"hydra/launcher={name}", f'hydra.sweep.dir="{where / "launcher"}"']
    for key, value in options.items():
        added = (
            "++" if "." in key else ""
        )  # a key of a mapping that names none, as ray.init.num_cpus
        command.append(f"{added}hydra.launcher.{key}={value}")
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


def do_place(told: LaunchedRun) -> None:
    """Make one run of a study, on cores of its own."""
    folder = StudyFolder(told.folder)
    study = folder.study()
    place = run_order(folder.cells(), study.repeats, study.seed)[told.place]
    manifest = folder.manifest()
    composer = Composer(load_registry())
    judged = [judge(cell, composer) for cell in (folder.cells()[0], place.cell)]
    judged = [one.as_recorded(manifest) for one in judged]
    runs = Runs(StudyPlan(study, tuple(judged)), folder, manifest["started_s"])
    with cores_held(told.threads) as cores, Worker(cores) as worker:
        runs.run(place, worker)


ConfigStore.instance().store(name="launched_run", node=LaunchedRun)


@hydra.main(config_path=None, config_name="launched_run", **HYDRA_ARGUMENTS)
def main(told: DictConfig) -> None:
    """One job."""
    do_place(LaunchedRun(str(told.folder), int(told.place), int(told.threads)))


if __name__ == "__main__":
    main()
