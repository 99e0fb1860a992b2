"""All comparisons of one metric: what is compared, measured, not yet corrected or judged."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from interlock.study.bootstrap import Measured, measure, without_noise
from interlock.study.effects import LevelKey, Model, model_of
from interlock.study.layout import Floats, Layout
from interlock.study.noise import EXACT, Floor, Noise, are_equal, floor_of, noise_of
from interlock.study.pairs import Activity, paired
from interlock.study.spec import Cell, Study

LEAST_PAIRS = 2


@dataclass(frozen=True)
class Compared:
    """One comparison on its metric's scale."""

    what: str
    against: str
    measured: Measured | None
    """None where there are too few pairs or no noise is known."""
    num_pairs: int
    idle: tuple[str, ...] = ()
    """The seams that made the difference, if none of them acted."""


@dataclass(frozen=True)
class MetricComparisons:
    """What one metric shows."""

    layout: Layout
    model: Model | None
    floor: Floor
    contrasts: tuple[Compared, ...]
    effects: tuple[Compared, ...]
    interactions: tuple[Compared, ...]
    """`what` and `against` are the two levels."""


class Comparing:
    """Makes every comparison of a study, one metric at a time."""

    def __init__(
        self,
        study: Study,
        cells: Sequence[Cell],
        references: Mapping[str, str],
        activity: Activity,
        exact: bool = False,
    ) -> None:
        """`exact`: all runs were in virtual time without noise."""
        self._study, self._cells, self._activity = study, cells, activity
        self._references, self._exact = references, exact

    def of(self, layout: Layout, rng: np.random.Generator) -> MetricComparisons:
        """The comparisons of a layout."""
        noise = noise_of(layout)
        plans = self._contrasts(layout)
        model = model_of(self._study, self._cells, layout) if layout.cells else None
        num_contrasts, effects = len(plans), self._effects(model)
        interactions = self._interactions(model)
        everything = [*plans, *effects, *interactions]
        exact = self._exact and noise is None and are_equal(layout.aa)
        found = (
            _exactly(layout, everything) if exact else self._measure(layout, noise, everything, rng)
        )
        end = num_contrasts + len(effects)
        repeats = max((compared.num_pairs for compared in found[:num_contrasts]), default=0)
        return MetricComparisons(
            layout=layout,
            model=model,
            floor=EXACT if exact else floor_of(layout, noise, repeats or self._study.repeats),
            contrasts=tuple(found[:num_contrasts]),
            effects=tuple(found[num_contrasts:end]),
            interactions=tuple(found[end:]),
        )

    def _measure(
        self,
        layout: Layout,
        noise: Noise | None,
        plans: "list[_Plan]",
        rng: np.random.Generator,
    ) -> list[Compared]:
        able = [plan for plan in plans if plan.num_pairs >= LEAST_PAIRS and noise]
        measured: list[Measured] = []
        if noise and able:
            weights_KN = np.array([plan.weights_N for plan in able])
            confidence = self._study.confidence
            measured = measure(layout.values_N, noise, weights_KN, confidence, rng)
        by_plan = {id(plan): one for plan, one in zip(able, measured, strict=True)}
        return [
            Compared(plan.what, plan.against, by_plan.get(id(plan)), plan.num_pairs, plan.idle)
            for plan in plans
        ]

    def _contrasts(self, layout: Layout) -> "list[_Plan]":
        plans = []
        for cell, reference in self._references.items():
            weights_N, num_pairs = paired(layout, cell, reference)
            idle = self._activity.idle(cell, reference)
            plans.append(_Plan(cell, reference, weights_N, num_pairs, idle))
        return plans

    def _effects(self, model: Model | None) -> "list[_Plan]":
        if model is None:
            return []
        plans = []
        for key, weights_N in model.mains.items():
            factor = self._study.factor(key[0])
            first = (factor.name, factor.levels[0].name)
            num_pairs = min(model.counts[key], model.counts[first])
            plans.append(_Plan(name(key), name(first), weights_N, num_pairs, self._idle_level(key)))
        return plans

    def _interactions(self, model: Model | None) -> "list[_Plan]":
        if model is None:
            return []
        return [
            _Plan(name(a), name(b), weights_N, min(model.counts[a], model.counts[b]))
            for (a, b), weights_N in model.interactions.items()
        ]

    def _idle_level(self, key: LevelKey) -> tuple[str, ...]:
        """The seams that a level changes, if none acted in any cell or its twin at the first."""
        first = self._study.factor(key[0]).levels[0].name
        by_levels = {tuple(sorted(cell.levels.items())): cell.id for cell in self._cells}
        idle: set[str] = set()
        for cell in self._cells:
            if cell.levels.get(key[0]) != key[1]:
                continue
            twin = by_levels.get(tuple(sorted({**cell.levels, key[0]: first}.items())))
            if twin is None:
                continue
            found = self._activity.idle(cell.id, twin)
            if not found:
                return ()
            idle |= set(found)
        return tuple(sorted(idle))


def _exactly(layout: Layout, plans: "Sequence[_Plan]") -> list[Compared]:
    """Differences without an interval: there is no noise."""
    size = float(np.abs(layout.values_N).max(initial=1.0))
    found = []
    for plan in plans:
        measured = without_noise(float(plan.weights_N @ layout.values_N), size)
        known = measured if plan.num_pairs else None
        found.append(Compared(plan.what, plan.against, known, plan.num_pairs, plan.idle))
    return found


@dataclass(frozen=True, eq=False)
class _Plan:
    """A comparison before it is measured."""

    what: str
    against: str
    weights_N: Floats
    num_pairs: int
    idle: tuple[str, ...] = ()


def name(key: LevelKey) -> str:
    """`factor=level`."""
    return f"{key[0]}={key[1]}"
