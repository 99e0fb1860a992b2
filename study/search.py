"""Search over compositions with Optuna: trials are cells, which are compared like any others.

A level's override of several values, `spec.num_drafts=1,3,5`, is a parameter that only this level
has: it is chosen when the level is. The metrics of the study are the objectives, each in its own
direction; of two or more, the report's Pareto front is what the search found.

Trials run one after the other. So the best of them are run again after the search, with the
baseline, in blocks as every study has: shuffled, and with seeds that the search has not seen.
"""

import importlib.util
import statistics
from collections.abc import Sequence
from dataclasses import asdict, replace
from time import monotonic
from typing import Any

from interlock.core.errors import ConfigError
from interlock.core.registry import Registry
from interlock.study.cells import cell_of, choices_of
from interlock.study.designs import most_trials, num_confirmed
from interlock.study.folder import StudyFolder
from interlock.study.order import Place, run_order
from interlock.study.plan import StudyPlan, judged_beside
from interlock.study.runs import Runs
from interlock.study.spec import Cell, Observation, Refusal, Study
from interlock.study.worker import Worker


def require_optuna() -> Any:
    """The library, or ConfigError with how to install it."""
    if importlib.util.find_spec("optuna") is None:
        raise ConfigError('design search needs Optuna: pip install "interlock[search]"')
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna


class Search:
    """The trials of a study, told again from its folder when it is resumed."""

    def __init__(self, plan: StudyPlan, folder: StudyFolder, runs: Runs) -> None:
        self._optuna = require_optuna()
        self._plan, self._folder, self._runs = plan, folder, runs
        study, options = plan.study, plan.study.design_options
        samplers = self._optuna.samplers
        sampler = (
            samplers.RandomSampler(seed=study.seed)
            if options.get("sampler") == "random"
            else samplers.TPESampler(seed=study.seed, multivariate=False)
        )
        directions = ["maximize" if m.better == "higher" else "minimize" for m in study.metrics]
        self._optimiser = self._optuna.create_study(sampler=sampler, directions=directions)
        self.cells: dict[str, Cell] = {cell.id: cell for cell in plan.cells}
        self.refusals: list[Refusal] = list(plan.refusals)
        self._lossy = [one.cell.id for one in plan.judged if one.lossy]

    def run(self, registry: Registry, worker: Worker, told: Any, retry_failed: bool) -> None:
        """Make all trials; those whose runs are in the folder take no time."""
        study = self._plan.study
        baseline = self._plan.cells[0]
        limit = study.design_options.get("timeout_s")
        deadline_s = monotonic() + (int(str(limit)) if limit else float("inf"))
        first = len(self._plan.cells) + 1  # the baseline runs twice
        num_trials = most_trials(study)
        total = study.repeats * (first + num_trials)
        self._block(baseline, worker, retry_failed, replicas=(0, 1))
        for cell in self._plan.cells[1:]:
            self._block(cell, worker, retry_failed)
        told(study.repeats * first, total, Place(0, baseline, 0))
        for number in range(num_trials):
            if monotonic() > deadline_s:
                break
            trial = self._optimiser.ask()
            cell = self._ask(trial)
            values = self._evaluate(cell, registry, worker, retry_failed)
            if values is None:
                self._optimiser.tell(trial, state=self._optuna.trial.TrialState.FAIL)
            else:
                self._optimiser.tell(trial, values)
            told(study.repeats * (first + number + 1), total, Place(0, cell, 0))
        order = self._confirming()
        for done, place in enumerate(order, start=1):
            self._run(place, worker, retry_failed)
            told(total + done, total + len(order), place)

    def _confirming(self) -> list[Place]:
        """The baseline, the best and what stands beside the design once more, in new blocks."""
        study, (baseline, *beside) = self._plan.study, self._plan.cells
        stated = {cell.id for cell in self._plan.cells}
        best = [self.cells[id] for id in self._best() if id not in stated][: num_confirmed(study)]
        if not num_confirmed(study) or not best + beside:
            return []
        order = run_order([baseline, *best, *beside], study.repeats, study.seed)
        return [replace(place, repeat=study.repeats + place.repeat) for place in order]

    def _best(self) -> list[str]:
        """Ids by how many others beat a cell in all metrics; of equals, by the first metric."""
        by_cell = {id: _medians(self._plan.study, self._seen(id)) for id in self.cells}
        signs = [1 if m.better == "lower" else -1 for m in self._plan.study.metrics]
        costs = {
            id: [sign * value for sign, value in zip(signs, values, strict=True)]
            for id, values in by_cell.items()
            if values is not None
        }

        def beaten(id: str) -> int:
            mine = costs[id]
            return sum(
                other != mine and all(a <= b for a, b in zip(other, mine, strict=True))
                for other in costs.values()
            )

        return sorted(costs, key=lambda id: (beaten(id), costs[id][0]))

    def _ask(self, trial: Any) -> Cell:
        study = self._plan.study
        levels: dict[str, str] = {}
        picks: dict[str, str] = {}
        for factor in study.factors:
            names = [level.name for level in factor.levels]
            levels[factor.name] = trial.suggest_categorical(factor.name, names)
            level = factor.level(levels[factor.name])
            for key, values in filter(None, map(choices_of, level.overrides)):
                parameter = f"{factor.name}={level.name} {key}"
                picks[key] = trial.suggest_categorical(parameter, list(values))
        return cell_of(study, levels, picks)

    def _evaluate(
        self, cell: Cell, registry: Registry, worker: Worker, retry_failed: bool
    ) -> list[float] | None:
        """The medians of the metrics; None for a cell that is refused or fails."""
        if cell.id not in self.cells:
            judged = judged_beside(self._plan, cell, registry)
            if judged.problems:
                if cell.id not in {one.cell.id for one in self.refusals}:
                    self.refusals.append(Refusal(cell, judged.problems))
                return None
            self._runs.add(judged)
            self.cells[cell.id] = cell
            self._lossy += [cell.id] * judged.lossy
        self.note()
        seen = self._block(cell, worker, retry_failed)
        return _medians(self._plan.study, seen)

    def _block(
        self, cell: Cell, worker: Worker, retry_failed: bool, replicas: Sequence[int] = (0,)
    ) -> list[Observation]:
        for repeat in range(self._plan.study.repeats):
            for replica in replicas:
                self._run(Place(-1, cell, repeat, replica), worker, retry_failed)
        return self._seen(cell.id)

    def _run(self, place: Place, worker: Worker, retry_failed: bool) -> None:
        if not self._runs.restore(place, retry_failed):
            self._runs.run(place, worker)
            self._runs.take(place)

    def _seen(self, cell: str) -> list[Observation]:
        """The runs of the search itself."""
        repeats = self._plan.study.repeats
        runs = (one for one in self._runs.observed if (one.cell, one.replica) == (cell, 0))
        return [one for one in runs if one.repeat < repeats]

    def note(self) -> None:
        """Write the cells so far into the manifest."""
        known = {
            "cells": [asdict(cell) for cell in self.cells.values()],
            "refusals": [asdict(refusal) for refusal in self.refusals],
            "lossy": self._lossy,
        }
        self._folder.write_manifest(self._folder.manifest() | known)


def _medians(study: Study, seen: Sequence[Observation]) -> list[float] | None:
    found = []
    for metric in study.metrics:
        values = [one.values.get(metric.key) for one in seen if not one.failure]
        numbers = [value for value in values if value is not None]
        if not numbers:
            return None
        found.append(statistics.median(numbers))
    return found
