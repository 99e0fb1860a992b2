"""The side that asks: a run server as an object, started on its cores and ended with the study."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing import Pipe
from pathlib import Path
from types import TracebackType
from typing import Any

from interlock.core.errors import InterlockError
from interlock.study.job import FAILED, LOG, Job, fail, last_lines


class Worker:
    """Runs jobs one after the other, each in a process of its own. A context manager.

    `cores`: those that its processes may use; none: all that this process may. As many others may
    be set for the next run. `closed`: it was ended for good, by any thread.
    """

    def __init__(self, cores: Sequence[int] = ()) -> None:
        self.cores = tuple(cores)
        self.closed = False
        self._process: subprocess.Popen[bytes] | None = None
        self._line: Any = None
        self._starting = threading.Lock()

    def __enter__(self) -> "Worker":
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def pid(self) -> int | None:
        """The server's process; None where none was started."""
        process = self._process
        return process.pid if process is not None else None

    def run(self, job: Job) -> bool:
        """Do the job and return when its process ended; its folder tells how.

        False where `close` ended it half-way: that is no failure.

        Raises InterlockError where no process can be started at all.
        """
        if self._process is None or self._process.poll() is not None:
            self._start()
        line, folder = self._line, Path(job.folder)
        if self.closed or line is None:
            return False
        try:
            line.send((job, self.cores))
            if not line.poll(job.timeout_s):
                return self._give_up(job)
            code = line.recv()
        except (EOFError, OSError):
            if self.closed:
                return False
            self._stop()
            code = None
        if code != 0 and not (folder / FAILED).is_file():
            folder.mkdir(parents=True, exist_ok=True)
            fail(folder, _death(code, folder))
        return True

    def _give_up(self, job: Job) -> bool:
        """End a run that takes too long, with all that it started; the next has a new server."""
        if self.closed:
            return False
        self._stop()
        folder = Path(job.folder)
        folder.mkdir(parents=True, exist_ok=True)
        reason = f"it had not ended after timeout_s={job.timeout_s:g} and was killed"
        fail(folder, reason + _ending(folder))
        return True

    def close(self) -> None:
        """End the server and what it runs, for good."""
        with self._starting:
            self.closed = True
        self._stop()

    def _stop(self) -> None:
        process, self._process = self._process, None
        line, self._line = self._line, None
        if process is not None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)  # it leads a group of its own
            process.wait()
        if line is not None:  # after the end of the server has woken who waits for it
            with suppress(OSError):
                line.close()

    def _start(self) -> None:
        """Start a server, unless this was closed; nothing where it is closed meanwhile."""
        ours, theirs = Pipe()
        command = [sys.executable, "-m", "interlock.study.run_server", str(theirs.fileno())]
        command += [",".join(map(str, self.cores))]
        with self._starting:
            if self.closed:
                return
            self._process = subprocess.Popen(
                command,
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C is for the study, which then ends this
                env=self._environment(),
            )
            self._line = ours
        theirs.close()
        try:
            ours.recv()
        except (EOFError, OSError):
            if self.closed:
                return
            self._stop()
            raise InterlockError("the process that runs cells could not start") from None

    def _environment(self) -> dict[str, str]:
        """The study's own; on some of the cores, no more threads than those."""
        environment = dict(os.environ)
        if self.cores:
            asked = environment.get("OMP_NUM_THREADS", "")
            threads = min(int(asked) if asked.isdecimal() else len(self.cores), len(self.cores))
            environment["OMP_NUM_THREADS"] = str(threads)
        return environment


def _death(code: int | None, folder: Path) -> str:
    """Why a process that left no reason ended."""
    tail = _ending(folder)
    if code is None:
        return f"the process that runs cells died{tail}"
    if code >= 0:
        return f"the process ended with status {code}{tail}"
    name = signal.Signals(-code).name
    hint = " (the system does so when memory runs out)" if name == "SIGKILL" else ""
    return f"the process was killed by {name}{hint}{tail}"


def _ending(folder: Path) -> str:
    said = " / ".join(last_lines(folder / LOG))
    return f"; its log ends: {said}" if said else ""
