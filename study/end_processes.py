"""Everything that a launcher started on this host, found by a mark in its environment and ended.

Launchers start processes that outlive them: joblib's workers and Ray's daemons wait for work,
submitit's jobs have sessions of their own and ignore a SIGTERM.
"""

import os
import signal
import time
from contextlib import suppress
from pathlib import Path

MARK = "INTERLOCK_LAUNCH"
"""The variable that a launcher's processes inherit; its value is the launch."""
PATIENCE_S = 2.0
CLEANERS = b"resource_tracker"
"""Of multiprocessing and joblib: they remove what was left in shared memory, and end by
themselves."""


def end_marked(launch: str, patience_s: float = PATIENCE_S) -> None:
    """End all processes of this launch but our own and `CLEANERS`: asked first, then killed.

    Takes `patience_s` twice at most. Where there is no /proc, nothing is found.
    """
    sessions: set[int] = set()
    for number in (signal.SIGTERM, signal.SIGKILL):
        for process in _found(launch, sessions):
            with suppress(ProcessLookupError, PermissionError):
                os.kill(process, number)
        deadline_s = time.monotonic() + patience_s
        while _found(launch, sessions) and time.monotonic() < deadline_s:
            time.sleep(0.02)


def _found(launch: str, sessions: set[int]) -> list[int]:
    """Those that bear the mark, and all of sessions which one of those began: these are noted.

    Ray's agents write a title over the place where their environment was.
    """
    running = _running()
    session = {process: _session(process) for process in running}
    marked = bearing(f"{MARK}={launch}")
    sessions |= {one for one in marked if session.get(one) == one}
    ours = {one for one in running if one in marked or session[one] in sessions}
    ours -= {one for one in ours if CLEANERS in _read(one, "cmdline")}
    return sorted(ours - {os.getpid()})


def bearing(entry: str) -> set[int]:
    """The processes in whose environment this `NAME=VALUE` is."""
    return {one for one in _running() if entry.encode() in _read(one, "environ").split(b"\0")}


def _running() -> list[int]:
    return [int(folder.name) for folder in Path("/proc").glob("[0-9]*")]


def _session(process: int) -> int:
    """0 for one that ended, or waits to be reaped."""
    state, *fields = _read(process, "stat").rpartition(b")")[2].split() or [b"Z"]
    return 0 if state == b"Z" else int(fields[2])


def _read(process: int, name: str) -> bytes:
    """Nothing of one that ended, or is somebody else's."""
    try:
        return Path("/proc", str(process), name).read_bytes()
    except OSError:
        return b""
