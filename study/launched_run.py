"""A run of a study that a launcher's job makes, perhaps on another host than the study is on.

The job takes cores that no other job on its host holds, does its run in a fresh process on them,
and leaves the run's folder with a mark that it ended. Where the study was stopped it stops too.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from interlock.core.registry import load_registry
from interlock.study.composer import Composer
from interlock.study.core_locks import cores_held
from interlock.study.folder import StudyFolder
from interlock.study.order import run_order
from interlock.study.plan import StudyPlan, judge
from interlock.study.runs import Runs
from interlock.study.worker import Worker

WATCHED_EVERY_S = 0.5
_workers: list[Worker] = []
"""The one of the last job in this process: a launcher's process may have many, and starting a
server of runs takes longer than a small run does."""


@dataclass
class LaunchedRun:
    """What a job is told."""

    folder: str = ""
    place: int = 0
    threads: int = 1
    stop: str = ""
    """The file whose presence stops all jobs of the launch, on whichever host they are."""


def do_place(told: LaunchedRun) -> None:
    """Make one run of a study, on cores of its own, unless the study was stopped."""
    folder = StudyFolder(told.folder)
    stop = Path(told.stop)
    if stop.exists():
        return
    study = folder.study()
    place = run_order(folder.cells(), study.repeats, study.seed)[told.place]
    manifest = folder.manifest()
    judged = [judge(cell, _composer()) for cell in (folder.cells()[0], place.cell)]
    judged = [one.as_recorded(manifest) for one in judged]
    runs = Runs(StudyPlan(study, tuple(judged)), folder, manifest["started_s"])
    with cores_held(told.threads) as cores:
        worker = _worker(cores)
        with _watched(stop, worker.close):
            if runs.run(place, worker):
                runs.mark_ended(place)


@cache
def _composer() -> Composer:
    return Composer(load_registry())


def _worker(cores: Sequence[int]) -> Worker:
    """The process's own, on these cores from its next run on."""
    if not _workers or len(_workers[-1].cores) != len(cores) or _workers[-1].closed:
        for worker in _workers:
            worker.close()
        _workers[:] = [Worker()]
    _workers[-1].cores = tuple(cores)
    return _workers[-1]


@contextmanager
def _watched(stop: Path, close: Callable[[], None]) -> Iterator[None]:
    """Call `close` once the file appears, inside the context."""
    over = threading.Event()

    def watch() -> None:
        while not over.wait(WATCHED_EVERY_S):
            if stop.exists():
                close()
                return

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
