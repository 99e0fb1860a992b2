"""`python run.py -m a=x,y b=1,2` read as a study: its folder says what the runs show.

The runs stay where Hydra put them, whichever launcher made them; cells/ID/rN links to them. Values
of `seed`, if it is swept, are the repeats. Nothing is shuffled and nothing runs twice: a study file
does both.
"""

import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
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
from interlock.study.swept import SweptRun


def report_sweep(
    runs: Sequence[SweptRun], directory: Path, console: Console, launcher: str = ""
) -> None:
    """Write the sweep's folder as a study's and print what it shows.

    `launcher`: Hydra's, by its name, where one ran jobs beside each other.
    """
    study, seeds = study_of_sweep(runs)
    study = replace(study, launcher={"name": launcher} if launcher else {})
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
            "started_s": min(run.began_s for run in runs),
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
    began = sorted((run.began_s, run.number) for _, _, run in found)
    for cell, repeat, run in found:
        number = began.index((run.began_s, run.number))
        if run.problems:
            continue
        if not (run.folder / "run.json").is_file() and not (run.folder / FAILED).is_file():
            fail(run.folder, "it left no result")
        _link(folder.run_folder(cell.id, repeat), run.folder)
        seen = observe(run.folder, Place(number, cell, repeat), study.metrics, number, 0.0)
        seen = replace(seen, started_s=run.began_s - began[0][0])
        share = None
        if not seen.failure:
            first = baseline.setdefault(repeat, run.folder)
            share = equal_share(run.folder, first)
        yield replace(seen, equal_tokens=share)


def _link(link: Path, target: Path) -> None:
    link.parent.mkdir(parents=True, exist_ok=True)
    if not link.exists():
        link.symlink_to(os.path.relpath(target, link.parent), target_is_directory=True)


def _split(override: str) -> tuple[str, str]:
    key, _, value = override.partition("=")
    return key.lstrip("+"), value


def _command(study: Study, seeds: Sequence[str]) -> Iterator[str]:
    if study.launcher:
        yield f"hydra/launcher={study.launcher['name']}"
    for factor in study.factors:
        yield f"{factor.name}={','.join(level.name for level in factor.levels)}"
    yield from study.base
    if seeds != [""]:
        yield f"seed={','.join(seeds)}"
