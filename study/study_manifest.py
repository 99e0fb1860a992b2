"""study.json: what was asked, by which program on which machine, and how far it went."""

import os
import platform
import shlex
import sys
import time
from dataclasses import asdict
from importlib import metadata
from pathlib import Path
from typing import Any

from interlock.core.errors import ConfigError
from interlock.driver.manifest import git_state
from interlock.study.designs import aliases
from interlock.study.difference import differences
from interlock.study.folder import MANIFEST, OBSERVATIONS, StudyFolder
from interlock.study.order import block_seed, run_order
from interlock.study.plan import StudyPlan


def begin(folder: StudyFolder, plan: StudyPlan, jobs: int = 1, study_file: str = "") -> float:
    """Write the manifest of a study that begins, or check that of one that goes on.

    `jobs` runs go on beside each other; `study_file` is the text that was read. Returns when the
    study began, seconds since the epoch. Raises ConfigError where the folder is that of another
    study, with what differs.
    """
    study = plan.study
    asked = asdict(study)
    if (folder.path / MANIFEST).is_file():
        before = folder.manifest()
        _require_same(folder, plan)
        most = max(jobs, before.get("jobs", 1))
        folder.write_manifest({**before, "study": asked, "state": "running", "jobs": most})
        (folder.path / OBSERVATIONS).unlink(missing_ok=True)  # of its last end
        return float(before["started_s"])
    if folder.path.is_dir() and any(folder.path.iterdir()):
        raise ConfigError(
            f"{folder.path} holds something else than a study; give --out another folder"
        )
    started_s = time.time()
    folder.write_manifest(
        {
            "study": asked,
            **({"study_file": study_file} if study_file else {}),
            "cells": [asdict(cell) for cell in plan.cells],
            "refusals": [asdict(refusal) for refusal in plan.refusals],
            "aliases": list(aliases(study, plan.cells)),
            "order": [
                [place.cell.id, place.repeat, place.replica]
                for place in run_order(plan.cells, study.repeats, study.seed)
            ],
            "seeds": [block_seed(study.seed, repeat) for repeat in range(study.repeats)],
            "lossy": [one.cell.id for one in plan.judged if one.lossy],
            "virtual": [one.cell.id for one in plan.judged if one.virtual],
            "jobs": jobs,
            "command": shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]]),
            **_environment(),
            "git": git_state(Path.cwd()),
            "started_s": started_s,
            "state": "running",
        }
    )
    return started_s


def finish(folder: StudyFolder) -> None:
    """Write down that every run was made, with the workloads that were served."""
    hashes: dict[str, list[str]] = {}
    for one in folder.observations():
        if one.workload_sha256:
            known = hashes.setdefault(str(one.repeat), [])
            known += [one.workload_sha256] if one.workload_sha256 not in known else []
    done = {"workload_sha256": hashes, "state": "done", "ended_s": time.time()}
    folder.write_manifest(folder.manifest() | done)


def _require_same(folder: StudyFolder, plan: StudyPlan) -> None:
    differing = differences(folder.study(), plan.study)
    cells = [cell.id for cell in folder.cells()]
    if not differing and plan.study.design != "search" and cells != [c.id for c in plan.cells]:
        differing = [_other_cells(set(cells), {cell.id for cell in plan.cells})]
    if differing:
        raise ConfigError(
            [f"{folder.path} is a study of something else; resume it as it was, or give --out "
             "another folder", *differing]
        )  # fmt: skip


def _other_cells(before: set[str], now: set[str]) -> str:
    gone, new = sorted(before - now), sorted(now - before)
    parts = [f"{'refuses' if ids is gone else 'accepts'} {', '.join(ids)}"
             for ids in (gone, new) if ids]  # fmt: skip
    return f"the resolver {' and '.join(parts)} now, which it did not then"


def _environment() -> dict[str, Any]:
    names = ("interlock", "torch", "numpy", "triton", "hydra-core")
    return {
        "python": sys.version.split()[0],
        "platform": platform.platform(),
        "cores": os.cpu_count(),
        "packages": {name: _version(name) for name in names},
    }


def _version(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None
