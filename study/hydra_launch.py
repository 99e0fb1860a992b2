"""Runs of a study through a Hydra launcher: joblib, submitit (Slurm, or its local executor), Ray.

The study starts this module as a Hydra application of its own, whose jobs are runs: `place=0,1,2`
are numbers in the study's order. The study reads their folders when all ended. If it is stopped, or
killed, all that the launcher started here ends as well, and jobs on other hosts see a file.
"""

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from uuid import uuid4

import hydra
from hydra.core.config_store import ConfigStore
from omegaconf import DictConfig

from interlock.conf.hydra_edge import HYDRA_ARGUMENTS
from interlock.conf.hydra_launchers import require_launcher
from interlock.conf.overrides import literal
from interlock.core.errors import ConfigError
from interlock.study.end_processes import MARK, end_marked
from interlock.study.folder import StudyFolder
from interlock.study.launched_run import LaunchedRun, do_place

LOG = "launcher.log"
LOOKED_EVERY_S = 0.5


def launch(
    folder: StudyFolder, launcher: Mapping[str, str], places: Sequence[int], threads: int,
    look: Callable[[], None] = lambda: None,
) -> None:  # fmt: skip
    """Make these runs through the launcher and return when all have ended.

    `look` is called now and then meanwhile. Whatever ends this early ends the jobs.

    Raises ConfigError where its plugin is not installed or cannot be started, with its last words.
    """
    require_launcher(launcher["name"])
    where = folder.path.resolve()
    stop = where / "launcher" / f"stopped-{uuid4().hex}"
    command = _command(where, launcher, places, threads, stop)
    log = where / LOG
    with log.open("wb") as said:
        started = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,  # whose end says that the study is gone
            stdout=said,
            stderr=said,
            start_new_session=True,  # Ctrl-C is for the study, which then ends this
            env={**os.environ, MARK: str(stop)},
        )
    status = None
    try:
        while status is None:
            with suppress(subprocess.TimeoutExpired):
                status = started.wait(LOOKED_EVERY_S)
            look()
    finally:
        if status != 0:
            _stop(stop)
            started.wait()
        assert started.stdin is not None
        started.stdin.close()
    if status:
        raise ConfigError(
            f"launcher={launcher['name']} ended with status {status}: {_words(log)} ({log})"
        )


def _words(log: Path) -> str:
    """What a launcher that failed says: the end of a traceback, else how its own words begin."""
    lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
    broke = any(line.startswith("Traceback") for line in lines)
    said = lines[-3:] if broke else [line for line in lines if not line.startswith("[")][:3]
    return " / ".join(line.strip() for line in said)


def _command(
    where: Path, launcher: Mapping[str, str], places: Sequence[int], threads: int, stop: Path
) -> list[str]:
    options = dict(launcher)
    command = [sys.executable, "-m", "interlock.study.hydra_launch", "-m"]
    command += [f"hydra/launcher={options.pop('name')}"]
    command += [f"hydra.sweep.dir={literal(str(where / 'launcher'))}"]
    for key, value in options.items():
        added = (
            "++" if "." in key else ""
        )  # a key of a mapping that names none, as ray.init.num_cpus
        command.append(f"{added}hydra.launcher.{key}={value}")
    command += [f"folder={literal(str(where))}", f"threads={threads}", f"stop={literal(str(stop))}"]
    return [*command, f"place={','.join(map(str, places))}"]


def _stop(stop: Path) -> None:
    """End the jobs of a launch: those of other hosts by a file that they look for."""
    with suppress(OSError):
        stop.parent.mkdir(exist_ok=True)
        stop.touch()
    end_marked(str(stop))


def _end_with(study: int, stop: Path) -> None:
    """Wait for the end of a pipe that only the study holds; then end everything, ourselves last."""
    while os.read(study, 1):
        pass
    _stop(stop)
    os._exit(130)


ConfigStore.instance().store(name="launched_run", node=LaunchedRun)


@hydra.main(config_path=None, config_name="launched_run", **HYDRA_ARGUMENTS)
def main(told: DictConfig) -> None:
    """One job."""
    do_place(LaunchedRun(str(told.folder), int(told.place), int(told.threads), str(told.stop)))


if __name__ == "__main__":
    of_the_study = (sys.stdin.fileno(), Path(os.environ[MARK]))
    threading.Thread(target=_end_with, args=of_the_study, daemon=True).start()
    main()
