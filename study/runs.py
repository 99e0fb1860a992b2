"""The runs of one study: what each is asked to do, and what was seen of it."""

import dataclasses
from pathlib import Path
from shutil import rmtree

from interlock.core.settings import EngineConfig
from interlock.driver.run_folder import write_file
from interlock.study.folder import StudyFolder
from interlock.study.job import ENDED, FAILED, Job
from interlock.study.observe import began_s, equal_share, observe
from interlock.study.order import Place, block_seed
from interlock.study.plan import Judged, StudyPlan
from interlock.study.spec import Observation
from interlock.study.worker import Worker


class Runs:
    """Does the runs of a plan and keeps what was observed, in the order of running.

    `started_s` is when the study first began, on the machine's clock.
    """

    def __init__(self, plan: StudyPlan, folder: StudyFolder, started_s: float) -> None:
        self.observed: list[Observation] = []
        self._plan, self._folder, self._started_s = plan, folder, started_s
        self._judged = {one.cell.id: one for one in plan.judged}
        self._places: dict[tuple[str, int, int], Place] = {}
        self._restored: set[tuple[str, int, int]] = set()
        self._any_lossy = bool(folder.manifest().get("lossy"))

    def add(self, judged: Judged) -> None:
        """Take in a cell that the plan did not have (a search finds them as it goes)."""
        self._judged[judged.cell.id] = judged
        self._any_lossy |= judged.lossy

    def restore(self, place: Place, retry_failed: bool) -> bool:
        """Take in what an earlier start has left; False where the run is still to be done."""
        self._places[place.cell.id, place.repeat, place.replica] = place
        key = place.cell.id, place.repeat, place.replica
        if key in self._restored:
            return True
        seen = self._folder.observation(place)
        if seen is None or (seen.failure and retry_failed):
            return False
        self._restored.add(key)
        self.observed.append(seen)
        self.observed.sort(key=lambda one: one.place)
        return True

    def warm_up(self, worker: Worker) -> None:
        """Runs of the baseline that are thrown away, where time is measured."""
        baseline = self._judged[self._plan.cells[0].id]
        where = self._folder.path / "warmup"
        for _ in range(0 if baseline.virtual else self._plan.study.warmup_runs):
            worker.run(self._job(baseline, Place(-1, baseline.cell, 0), where, quality=False))
            rmtree(where, ignore_errors=True)  # what is wrong with it, its own runs say as well

    def empty(self, place: Place) -> None:
        """Remove what an earlier try has left."""
        rmtree(self._folder.path / place.folder, ignore_errors=True)

    def mark_ended(self, place: Place) -> None:
        """Say in a run's folder that it ended, for whoever observes it later."""
        write_file(self._folder.path / place.folder / ENDED, [])

    def has_ended(self, place: Place, retry_failed: bool = False) -> bool:
        """Whether a launcher's job made this run; False for a failed one that is made again."""
        where = self._folder.path / place.folder
        return (where / ENDED).is_file() and not (retry_failed and (where / FAILED).is_file())

    def began_s(self, place: Place) -> float:
        """When a run that ended began, seconds since the epoch; those that never did come last."""
        return began_s(self._folder.path / place.folder)

    def run(self, place: Place, worker: Worker) -> bool:
        """Do one run, in an empty folder; False where it was stopped half-way."""
        where = self._folder.path / place.folder
        self.empty(place)
        quality = self._any_lossy and (place.repeat, place.replica) == (0, 0)
        return worker.run(self._job(self._judged[place.cell.id], place, where, quality))

    def take(self, place: Place) -> None:
        """Observe a run that ended, and mark it as done."""
        number = 1 + max((one.place for one in self.observed), default=-1)
        where, metrics = self._folder.path / place.folder, self._plan.study.metrics
        seen = observe(where, place, metrics, number, self._started_s)
        self._folder.write_observation(place, seen)
        self.observed.append(seen)
        self._restored.add((place.cell.id, place.repeat, place.replica))

    def compare_tokens(self) -> None:
        """Fill in how much of every output is the baseline's, and write all observations."""
        baseline = self._plan.cells[0].id
        ran = {(one.cell, one.repeat, one.replica): one for one in self.observed if not one.failure}
        for at, one in enumerate(self.observed):
            against = ran.get((baseline, one.repeat, 0))
            if one.failure or against is None or one.workload_sha256 != against.workload_sha256:
                continue
            if one.equal_tokens is not None:
                continue
            ours = self._folder.run_folder(one.cell, one.repeat, one.replica)
            share = equal_share(ours, self._folder.run_folder(baseline, one.repeat))
            if share is not None:
                self.observed[at] = dataclasses.replace(one, equal_tokens=share)
                place = self._places[one.cell, one.repeat, one.replica]
                self._folder.write_observation(place, self.observed[at])
        self._folder.write_observations(self.observed)

    def _job(self, judged: Judged, place: Place, where: Path, quality: bool) -> Job:
        assert judged.config is not None
        seed = block_seed(self._plan.study.seed, place.repeat)
        is_baseline = place.cell == self._plan.cells[0]
        config = dataclasses.replace(judged.config, seed=seed, progress=False)
        config, number = numbered(config, max(place.number, 0))
        return Job(
            config,
            str(where),
            (*place.cell.overrides, f"seed={seed}", *number, "progress=false"),
            timed=not judged.virtual,
            quality=quality and (judged.lossy or is_baseline),
            timeout_s=self._plan.study.timeout_s,
        )


def numbered(config: EngineConfig, number: int) -> tuple[EngineConfig, tuple[str, ...]]:
    """The configuration of this run of a study, and the override that says so.

    An executor that makes its own noise (an option `noise_run`) must not repeat it in every run.
    """
    executor = config.choices["executor"]
    if not hasattr(executor.config, "noise_run"):
        return config, ()
    choice = dataclasses.replace(
        executor, config=dataclasses.replace(executor.config, noise_run=number)
    )
    choices = {**config.choices, "executor": choice}
    return dataclasses.replace(config, choices=choices), (f"executor.noise_run={number}",)
