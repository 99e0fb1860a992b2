"""A run that a process is asked to make, and the files that it leaves beside a run's own."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from interlock.core.settings import EngineConfig
from interlock.driver.run_folder import write_file

FAILED, MACHINE, LOG, QUALITY = "failed.json", "machine.json", "log.txt", "quality.json"
ENDED = "ended"
"""The file that a launcher's job leaves last: its run ended, well or not."""
STARTED = "started_s"
"""In machine.json: when the run began, seconds since the epoch."""


@dataclass(frozen=True)
class Job:
    """A run to be made: its configuration, where it goes, and what is measured beside it."""

    config: EngineConfig
    folder: str
    overrides: tuple[str, ...]
    timed: bool = True
    """False for virtual time: nothing is warmed up or calibrated."""
    quality: bool = False
    timeout_s: float | None = None
    """When the run is ended, in seconds from its start; None: never."""


def fail(folder: Path, problem: str) -> int:
    """Leave the reason in the folder; 1, the status of a process that failed."""
    write_file(folder / FAILED, [json.dumps({"problem": problem})])
    return 1


def last_lines(path: Path, count: int = 3) -> Sequence[str]:
    """The end of a log, for the reason why its process died."""
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ()
    return [line for line in text.splitlines() if line.strip()][-count:]
