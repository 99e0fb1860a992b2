"""What a study would run: cells that the resolver accepts and those it refuses, found before."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from interlock.conf.find_model import describe_models
from interlock.conf.longest_request import length_problems
from interlock.core.capabilities import DrivesVirtualTime, Lossy
from interlock.core.errors import ConfigError, InterlockError
from interlock.core.registry import Registry
from interlock.core.resolver import resolve
from interlock.core.settings import EngineConfig
from interlock.study.cells import cell_id, choices_of
from interlock.study.composer import Composer
from interlock.study.designs import cells_of, checked_cells
from interlock.study.spec import Cell, Refusal, Study

MOST_RUNS = 1_000_000
"""Eleven days at one a second."""


@dataclass(frozen=True)
class Judged:
    """A cell and what the resolver says of it: problems, or nothing."""

    cell: Cell
    problems: tuple[str, ...] = ()
    config: EngineConfig | None = None
    """What it composes to, where nothing is wrong."""
    lossy: bool = False
    """Its output may differ from the baseline's."""
    virtual: bool = False
    """Its time is computed, not measured."""
    threads: int | None = None
    """CPU threads that it asks for."""

    def as_recorded(self, manifest: Mapping[str, Any]) -> "Judged":
        """As lossy as the study's manifest says, which was written with all cells at hand."""
        return replace(self, lossy=self.cell.id in manifest["lossy"])


@dataclass(frozen=True)
class StudyPlan:
    """The cells of a study in the design's order, judged."""

    study: Study
    judged: tuple[Judged, ...]

    @property
    def cells(self) -> tuple[Cell, ...]:
        """Those that run, the baseline first."""
        return tuple(one.cell for one in self.judged if not one.problems)

    @property
    def refusals(self) -> tuple[Refusal, ...]:
        """Those that do not, with the reasons."""
        return tuple(Refusal(one.cell, one.problems) for one in self.judged if one.problems)


def plan_study(
    study: Study,
    registry: Registry,
    cells: Iterable[Cell] | None = None,
    composer: Composer | None = None,
) -> StudyPlan:
    """Judge `cells` (None: those of the design). Reads model descriptions, and no weights.

    `composer`: of the same registry, with what was composed of the study so far.

    Raises ConfigError where the baseline, against which everything is compared, is refused.
    """
    listed = tuple(cells) if cells is not None else cells_of(study)
    runs = (len(listed) + 1) * study.repeats
    if runs > MOST_RUNS:
        raise ConfigError(
            f"{len(listed):,} cells and the baseline again, x repeats={study.repeats}, are "
            f"{runs:,} runs, and a study has {MOST_RUNS:,} at most"
        )
    composer = composer or Composer(registry)
    judged = tuple(judge(cell, composer) for cell in _counted("judging cells", listed, composer))
    first = judged[0]
    if first.problems:
        raise ConfigError(
            [f"the baseline, {first.cell.id}, cannot be run: {one}" for one in first.problems]
        )
    changed = _declared(study)
    return StudyPlan(study, tuple(_with_loss(one, first, changed) for one in judged))


def judged_beside(plan: StudyPlan, cell: Cell, registry: Registry) -> Judged:
    """Judge a cell that joins a plan, as lossy as it is beside the plan's baseline."""
    return _with_loss(judge(cell, Composer(registry)), plan.judged[0], _declared(plan.study))


def _declared(study: Study) -> set[str]:
    """Levels and cells that the file calls lossy."""
    found = {f"{f.name}={one.name}" for f in study.factors for one in f.levels if one.lossy}
    return found | {cell_id({"also": one.name}) for one in study.also if one.lossy}


def _with_loss(one: Judged, baseline: Judged, declared: set[str]) -> Judged:
    """Lossy by the file's word, by a component's, or by a setting that changes what is computed."""
    if one.config is None or baseline.config is None:
        return one
    named = any(f"{factor}={level}" in declared for factor, level in one.cell.levels.items())
    named = named or one.cell.id in declared
    mine, theirs = _numbers(one.config), _numbers(baseline.config)
    return replace(one, lossy=one.lossy or named or mine != theirs)


def _numbers(config: EngineConfig) -> tuple[str, ...]:
    """The settings that say in which numbers what is computed."""
    return config.model, config.dtype, config.weights, config.cache.dtype


def judge(cell: Cell, composer: Composer) -> Judged:
    """Compose and resolve one cell."""
    registry = composer.registry
    try:
        config = composer.config(cell.overrides)
        resolution = resolve(config, registry, describe_models(config, registry))
    except InterlockError as error:
        problems = error.problems if isinstance(error, ConfigError) else [str(error)]
        return Judged(cell, tuple(problems))
    if refused := (*map(str, resolution.problems), *length_problems(resolution)):
        return Judged(cell, refused)
    offered = resolution.capabilities
    return Judged(
        cell,
        config=config,
        lossy=Lossy() in offered,
        virtual=DrivesVirtualTime() in offered or config.replay.blocks == "ids",
        threads=config.threads,
    )


def check_overrides(study: Study, composer: Composer) -> list[str]:
    """What is wrong with overrides of the base or of a level in every cell that has them.

    A level is judged by the cells that hold it: what only some of them lack (an option of one
    drafter beside another) is a refusal of those. What all of them lack, and the level alone, is
    a mistake of the file.
    """
    cells = checked_cells(study)
    found = {
        cell.id: set(composer.problems(cell.overrides))
        for cell in _counted("composing cells", cells, composer)
    }
    if not any(found.values()):
        return []
    base = set(composer.problems(study.base))
    everywhere = set.intersection(*found.values()) & base
    problems = [f"base: {one}" for one in sorted(everywhere)]
    for factor in study.factors:
        for level in factor.levels:
            own = _always(factor.name, level.name, cells, found) - everywhere
            if own:
                alone = [text for text in level.overrides if not _swept(study, text)]
                own &= set(composer.problems((*study.base, *alone)))
            problems += [f"factors.{factor.name}.{level.name}: {one}" for one in sorted(own)]
    for one in study.also:
        own = set(composer.problems((*study.base, *one.overrides))) - everywhere
        problems += [f"also.{one.name}: {each}" for each in sorted(own)]
    return problems


def _swept(study: Study, text: str) -> bool:
    return study.design == "search" and choices_of(text) is not None


def _always(
    factor: str, level: str, cells: Sequence[Cell], found: Mapping[str, set[str]]
) -> set[str]:
    holding = [found[cell.id] for cell in cells if cell.levels.get(factor) == level]
    return set.intersection(*holding) if holding else set()


def _counted(what: str, cells: Sequence[Cell], composer: Composer) -> Iterator[Cell]:
    """The cells, while `composer.told` hears how many of them are done."""
    for done, cell in enumerate(cells):
        composer.told(what, done, len(cells))
        yield cell
    composer.told(what, len(cells), len(cells))
