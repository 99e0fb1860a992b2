"""A job of `python run.py -m ...`: what it leaves for whoever started the sweep.

A launcher may run a job in another process or on another host. So each leaves its own record in its
folder, which the process that started the sweep reads when all have ended.
"""

import json
from dataclasses import dataclass
from pathlib import Path

from interlock.driver.run_folder import write_file
from interlock.study.read_json import read_json

SWEPT = "swept.json"


@dataclass(frozen=True)
class SweptRun:
    """A job of a sweep that ended."""

    folder: Path
    number: int
    """Its place in the sweep, from 0."""
    overrides: tuple[str, ...]
    status: int = 0
    """What a process that ran it alone would have ended with."""
    began_s: float = 0.0
    """Seconds since the epoch."""
    problems: tuple[str, ...] = ()
    """Why it could not start."""


def leave(run: SweptRun, sweep: str) -> None:
    """Write the record of a job of this sweep (a name that no other sweep has)."""
    found = {
        "sweep": sweep, "number": run.number, "overrides": run.overrides, "status": run.status,
        "problems": run.problems, "began_s": run.began_s,
    }  # fmt: skip
    run.folder.mkdir(parents=True, exist_ok=True)
    write_file(run.folder / SWEPT, [json.dumps(found)])


def swept_runs(directory: Path, sweep: str) -> list[SweptRun]:
    """The jobs of this sweep that left a record below the directory, in the sweep's order."""
    found = []
    for path in directory.rglob(SWEPT):
        record = read_json(path)
        if record.get("sweep") != sweep:
            continue  # of another sweep into the same directory
        found.append(
            SweptRun(
                path.parent, record["number"], tuple(record["overrides"]), record["status"],
                record["began_s"], tuple(record["problems"]),
            )
        )  # fmt: skip
    return sorted(found, key=lambda run: run.number)
