"""How long a study will take, from a few of its runs: a range, as cells differ."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from tempfile import TemporaryDirectory

from interlock.core.errors import InterlockError
from interlock.study.designs import most_trials, num_confirmed
from interlock.study.folder import StudyFolder
from interlock.study.order import Place, run_order
from interlock.study.plan import StudyPlan
from interlock.study.runs import Runs
from interlock.study.spec import Cell
from interlock.study.study_manifest import begin
from interlock.study.worker import Worker

MEASURED_CELLS = 4
"""The baseline, and others that are spread over the design."""
PATIENCE_S = 30.0
"""After so long no further run is measured: what is known by then has to do."""


@dataclass(frozen=True)
class Measured:
    """Seconds of what a study does, measured."""

    start_s: float
    """Before the first run: a process that imports everything, and warm-up runs."""
    each_s: tuple[float, ...]
    """A run, of each measured cell."""
    quality_s: float = 0.0
    """What measuring quality adds to a run."""


@dataclass(frozen=True)
class Amount:
    """What a study is to do."""

    runs: int
    quality_runs: int = 0
    at_once: int = 1


def expected_s(measured: Measured, amount: Amount) -> tuple[float, float]:
    """If every run took as long as the fastest that was measured, and as the slowest; seconds.

    `at_once` runs go on beside each other, so that the last round may be no full one. Each worker
    starts beside the others.
    """
    rounds = -(-amount.runs // amount.at_once)
    quality_rounds = -(-amount.quality_runs // amount.at_once)
    beside = measured.start_s + quality_rounds * measured.quality_s
    return (
        beside + rounds * min(measured.each_s),
        beside + rounds * max(measured.each_s),
    )


def amount_of(plan: StudyPlan, at_once: int) -> Amount:
    """The runs of a study; of a search the most that it makes, one after the other."""
    study = plan.study
    lossy = sum(one.lossy for one in plan.judged if not one.problems)
    quality_runs = lossy + 1 if lossy else 0
    if study.design == "search":
        stated, best = len(plan.cells) + 1, num_confirmed(study)  # the baseline runs twice
        again = stated + best if best else 0
        return Amount(study.repeats * (stated + most_trials(study) + again), quality_runs)
    return Amount(len(run_order(plan.cells, study.repeats, study.seed)), quality_runs, at_once)


def sampled(cells: Sequence[Cell], count: int = MEASURED_CELLS) -> list[Cell]:
    """The baseline and others that are spread evenly to the last."""
    if len(cells) <= count:
        return list(cells)
    last = len(cells) - 1
    return [cells[round(at * last / (count - 1))] for at in range(count)]


def measure(plan: StudyPlan) -> Measured:
    """Run a few cells, alone and in a folder that is then removed; those that fail are left out.

    Of long runs the baseline's first alone: what it took to start is then part of its time.
    Raises InterlockError, with the reason, where the baseline fails.
    """
    cells = sampled(plan.cells)
    with TemporaryDirectory() as where, Worker() as worker:
        folder = StudyFolder(where)
        runs = Runs(plan, folder, begin(folder, plan))

        def seconds(place: Place) -> float:
            runs.restore(place, retry_failed=False)
            start_s = time.monotonic()
            runs.run(place, worker)
            return time.monotonic() - start_s

        start_s = time.monotonic()
        runs.warm_up(worker)
        seconds(Place(0, cells[0], 0))
        first_s = time.monotonic() - start_s
        runs.take(Place(0, cells[0], 0))
        if runs.observed[0].failure:
            raise InterlockError(f"the baseline fails: {runs.observed[0].failure}")
        if first_s > PATIENCE_S:
            return Measured(start_s=0.0, each_s=(first_s,))
        with_quality_s = seconds(Place(0, cells[0], 0))
        each_s = [seconds(Place(0, cells[0], 0, replica=1))]
        for cell in cells[1:]:
            if time.monotonic() - start_s > PATIENCE_S:
                break
            place = Place(0, cell, 0, replica=1)
            taken_s = seconds(place)
            runs.take(place)
            each_s += [taken_s] * (not runs.observed[-1].failure)
    lossy = any(one.lossy for one in plan.judged)
    return Measured(
        start_s=max(0.0, first_s - with_quality_s),
        each_s=tuple(each_s),
        quality_s=max(0.0, with_quality_s - each_s[0]) if lossy else 0.0,
    )


def told(plan: StudyPlan, at_once: int) -> str:
    """What a dry run says of the time; a sentence."""
    measured, amount = measure(plan), amount_of(plan, at_once)
    low_s, high_s = expected_s(measured, amount)
    fastest_s, slowest_s = min(measured.each_s), max(measured.each_s)
    most = "at most " * (plan.study.design == "search")
    said = (
        f"expected: {low_s / 60:.1f} to {high_s / 60:.1f} minutes for {most}{amount.runs} runs, of "
        f"which {fastest_s:.2f} to {slowest_s:.2f} s were measured in {len(measured.each_s)} of "
        f"{len(plan.cells)} cells, and {measured.start_s:.1f} s to start; other cells may take "
        "longer, and the report comes after it"
    )
    if plan.study.launcher:
        name = plan.study.launcher["name"]
        said += (
            f"; launcher={name} makes runs beside each other, whose jobs start in their own time"
        )
    return said
