"""Run the cells of a study: fresh processes, shuffled blocks, and a folder that can be resumed."""

import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack

from interlock.core.registry import Registry
from interlock.study.folder import StudyFolder
from interlock.study.order import Place, run_order
from interlock.study.plan import StudyPlan, plan_study
from interlock.study.runs import Runs
from interlock.study.search import Search
from interlock.study.spec import Observation, Study
from interlock.study.study_manifest import begin, finish
from interlock.study.worker import Worker

Told = Callable[[int, int, Place], None]
"""(runs done, runs in all, the one that ended)."""


def run_study(
    study: Study,
    folder: StudyFolder,
    registry: Registry,
    plan: StudyPlan | None = None,
    cores: Sequence[Sequence[int]] = ((),),
    retry_failed: bool = False,
    told: Told = lambda *_: None,
    study_file: str = "",
    workers: Sequence[Worker] = (),
) -> list[Observation]:
    """Run what is not done yet; every observation, in the order of running.

    `study_file` is the text that the study was read from: the folder keeps it. `cores` has an entry
    for each worker that runs beside the others; or `workers` are the caller's, who closes them, for
    several studies in a row. A run that failed says why and others go on; with `retry_failed` such
    runs are done again. What is done stays in the folder whatever ends this early: call it again
    with the same study to go on.

    Raises:
        ConfigError: the baseline is refused, or the folder is that of another study, or one is at
            work there now.
        RunFolderError: the disk is full.
        KeyboardInterrupt: Ctrl-C; the runs that were going on are not recorded.
    """
    plan = plan or plan_study(study, registry)
    with folder.alone():
        return _run(plan, folder, registry, cores, retry_failed, told, study_file, workers)


def _run(
    plan: StudyPlan, folder: StudyFolder, registry: Registry, cores: Sequence[Sequence[int]],
    retry_failed: bool, told: Told, study_file: str, workers: Sequence[Worker],
) -> list[Observation]:  # fmt: skip
    study, jobs = plan.study, len(workers or cores)
    runs = Runs(plan, folder, begin(folder, plan, jobs, study_file))
    order = run_order(plan.cells, study.repeats, study.seed)
    left = [place for place in order if not runs.restore(place, retry_failed)]
    done = len(order) - len(left)
    with ExitStack() as stack:
        workers = workers or [stack.enter_context(Worker(listed)) for listed in cores]
        if study.launcher and left:  # no search: it has none
            left = _launched(study, folder, plan, runs, left, told, retry_failed)
        for worker in workers if left else ():
            runs.warm_up(worker)
        if study.design == "search":
            Search(plan, folder, runs).run(registry, workers[0], told, retry_failed)
            left = []
        for place in _ended(runs, left, workers):
            runs.take(place)
            done += 1
            told(done, len(order), place)
    runs.compare_tokens()
    finish(folder)
    return runs.observed


def _launched(
    study: Study, folder: StudyFolder, plan: StudyPlan, runs: Runs, left: Sequence[Place],
    told: Told, retry_failed: bool,
) -> list[Place]:  # fmt: skip
    """Let a launcher make all runs that are left, then observe them in the order they began.

    Those that ended before it was stopped are observed as well, now or by the next start.
    """
    from interlock.study.hydra_launch import launch

    threads = max(one.threads or 1 for one in plan.judged)
    left = _without_ended(runs, left, retry_failed)
    for place in left:
        runs.empty(place)
    last = 0

    def look() -> None:
        nonlocal last
        ended = [place for place in left if runs.has_ended(place)]
        if len(ended) > last:
            last = len(ended)
            told(last, len(left), ended[-1])

    try:
        launch(folder, study.launcher, [place.number for place in left], threads, look)
    except BaseException:
        _without_ended(runs, left)
        raise
    for place in sorted(left, key=runs.began_s):
        runs.take(place)
    told(len(left), len(left), left[-1])
    return []


def _without_ended(runs: Runs, left: Sequence[Place], retry_failed: bool = False) -> list[Place]:
    """Observe the runs that jobs have made; those that are still to be done."""
    for place in sorted(left, key=runs.began_s):
        if runs.has_ended(place, retry_failed):
            runs.take(place)
    return [place for place in left if not runs.has_ended(place, retry_failed)]


def _ended(runs: Runs, left: Sequence[Place], workers: Sequence[Worker]) -> Iterator[Place]:
    """Each place as its run ends; several workers take them in order, beside each other."""
    if len(workers) == 1:
        for place in left:
            runs.run(place, workers[0])
            yield place
        return
    todo: queue.SimpleQueue[Place] = queue.SimpleQueue()
    ended: queue.SimpleQueue[Place | BaseException] = queue.SimpleQueue()
    for place in left:
        todo.put(place)
    for worker in workers:
        arguments = (runs, worker, todo, ended)
        threading.Thread(target=_work, args=arguments, daemon=True).start()
    for _ in left:
        one = ended.get()
        if isinstance(one, BaseException):
            raise one
        yield one


def _work(
    runs: Runs,
    worker: Worker,
    todo: "queue.SimpleQueue[Place]",
    ended: "queue.SimpleQueue[Place | BaseException]",
) -> None:
    """In a worker's thread: do what is left until nothing is, or the worker is closed."""
    try:
        while True:
            place = todo.get_nowait()
            if not runs.run(place, worker):
                return
            ended.put(place)
    except queue.Empty:
        return
    except BaseException as error:
        ended.put(error)
