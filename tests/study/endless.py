"""A study with a run that hangs, and how to see that it does."""

import time
from contextlib import suppress
from fnmatch import fnmatch
from pathlib import Path

ENDLESS = """
    base: [executor=fixed]
    factors:
      traffic:
        made: [workload.num_requests=2]
        never: [workload=prompts, 'workload.path="{pipe}"']
    repeats: 1
    timeout_s: {timeout_s}
    """
"""A pipe into which nobody writes is read for ever, at no cost."""


def run_under_way(folder: Path, within_s: float = 60) -> int:
    """The process that writes the log of the run in this folder, whose name may be a pattern."""
    deadline = time.monotonic() + within_s
    log = str(folder / "log.txt")
    while time.monotonic() < deadline:
        for process in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                if fnmatch(str((process / "fd" / "1").readlink()), log):
                    return int(process.name)
        time.sleep(0.05)
    raise AssertionError("no run began")


def wait_for(path: Path, within_s: float = 60) -> None:
    """Until the file is there."""
    deadline = time.monotonic() + within_s
    while not path.exists():
        assert time.monotonic() < deadline, path
        time.sleep(0.05)
