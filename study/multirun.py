"""`python run.py -m a=x,y b=1,2` read as a study: its folder says what the runs show.

The runs stay where Hydra put them; cells/ID/rN links to them. Values of `seed`, if it is swept, are
the repeats. Nothing is shuffled and nothing runs twice: a study file does both.
"""

import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console

from interlock.study.cells import cell_of
from interlock.study.folder import StudyFolder
from interlock.study.job import FAILED, fail
from interlock.study.metrics import DEFAULTS, metric_of
from interlock.study.observe import equal_share, observe
from interlock.study.order import Place
from interlock.study.report.commands import report
from interlock.study.spec import Cell, Factor, Level, Observation, Refusal, Study


@dataclass(frozen=True)
class SweptRun:
    """A job of a sweep that ended."""

    folder: Path
    overrides: tuple[str, ...]
    problems: tuple[str, ...] = ()
    """Why it could not start."""


def report_sweep(runs: Sequence[SweptRun], directory: Path, console: Console) -> None:
    """Write the sweep's folder as a study's and print what it shows."""
    study, seeds = study_of_sweep(runs)
    folder = StudyFolder(directory)
    found: list[tuple[Cell, int, SweptRun]] = []
    for run in runs:
        chosen = dict(_split(text) for text in run.overrides)
        levels = {factor.name: chosen[factor.name] for factor in study.factors}
        found.append((cell_of(study, levels), seeds.index(chosen.get("seed", "")), run))
    cells = {cell.id: cell for cell, _, run in found if not run.problems}
    refused = {cell.id: Refusal(cell, run.problems) for cell, _, run in found if run.problems}
    folder.write_manifest(
        {
            "study": asdict(study),
            "cells": [asdict(cell) for cell in cells.values()],
            "refusals": [asdict(one) for name, one in refused.items() if name not in cells],
            "command": " ".join(["interlock", "-m", *_command(study, seeds)]),
            "started_s": time.time(),
            "state": "done",
        }
    )
    folder.write_observations(_observed(study, folder, found))
    report(folder, console)


def study_of_sweep(runs: Sequence[SweptRun]) -> tuple[Study, list[str]]:
    """What was swept as factors, in the order of the command line, and the values of `seed`."""
    values: dict[str, list[str]] = {}
    for run in runs:
        for key, value in map(_split, run.overrides):
            known = values.setdefault(key, [])
            known += [value] if value not in known else []
    seeds = values.pop("seed", [""])
    factors = tuple(
        Factor(key, tuple(Level(value, (f"{key}={value}",)) for value in listed))
        for key, listed in values.items()
        if len(listed) > 1
    )
    base = tuple(f"{key}={listed[0]}" for key, listed in values.items() if len(listed) == 1)
    study = Study(
        name="sweep", title="Sweep", factors=factors, design="full_factorial", base=base,
        metrics=tuple(map(metric_of, DEFAULTS)), repeats=len(seeds), warmup_runs=0,
    )  # fmt: skip
    return study, seeds


def _observed(
    study: Study, folder: StudyFolder, found: Sequence[tuple[Cell, int, SweptRun]]
) -> Iterator[Observation]:
    baseline: dict[int, Path] = {}
    for number, (cell, repeat, run) in enumerate(found):
        if run.problems:
            continue
        if not (run.folder / "run.json").is_file() and not (run.folder / FAILED).is_file():
            fail(run.folder, "it left no result")
        _link(folder.run_folder(cell.id, repeat), run.folder)
        seen = observe(run.folder, Place(number, cell, repeat), study.metrics, number, 0.0)
        share = None
        if not seen.failure:
            first = baseline.setdefault(repeat, run.folder)
            share = equal_share(run.folder, first)
        yield Observation(**{**vars(seen), "equal_tokens": share})


def _link(link: Path, target: Path) -> None:
    link.parent.mkdir(parents=True, exist_ok=True)
    if not link.exists():
        link.symlink_to(os.path.relpath(target, link.parent), target_is_directory=True)


def _split(override: str) -> tuple[str, str]:
    key, _, value = override.partition("=")
    return key.lstrip("+"), value


def _command(study: Study, seeds: Sequence[str]) -> Iterator[str]:
    for factor in study.factors:
        yield f"{factor.name}={','.join(level.name for level in factor.levels)}"
    yield from study.base
    if seeds != [""]:
        yield f"seed={','.join(seeds)}"
