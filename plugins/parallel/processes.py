"""Starts the other ranks' processes on this machine, and watches them."""

import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import IO, Any, TypeVar

from interlock.core.errors import RankError
from interlock.plugins.parallel.worker import Hello

T = TypeVar("T")
POLL_S = 0.2
STOPPED_S = 3.0
"""A process that is stopped (SIGSTOP) for so long will not be waited for."""
LOST_POLLS = 5
"""How often a rank that only lost another is looked at before it counts as the cause."""
CAUSE_S = 3.0
"""How long a failed call waits to learn why: the watch sees a death a moment later."""
LEAVE_S = 10.0
"""How long a rank may take to leave after the last plan."""
LAST_WORDS = 2000
"""Characters of a worker's standard error in a message."""


class Worker:
    """The process of one rank."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.ready = False
        self._told: tuple[str, str] | None = None
        self._stopped_polls = 0
        self._words: IO[bytes] = tempfile.TemporaryFile()
        ours, theirs = socket.socketpair()
        descriptor = theirs.fileno()
        code = (
            f"import sys; sys.path[:] = {sys.path!r}; "
            f"from interlock.plugins.parallel.worker import main; main({descriptor})"
        )
        self.process = subprocess.Popen(
            [sys.executable, "-c", code],
            stdin=subprocess.DEVNULL,
            stdout=self._words,
            stderr=self._words,
            pass_fds=[descriptor],
            start_new_session=True,  # Ctrl-C is for rank 0, which ends the others
        )
        theirs.close()
        self._connection: Connection[Any, Any] = Connection(ours.detach())

    def greet(self, hello: Hello) -> None:
        """Tell the worker who it is."""
        with suppress(OSError):  # it ended: its status says how
            self._connection.send(hello)

    def listen(self) -> None:
        """Take in what it has said."""
        try:
            while self._connection.poll():
                kind, text = self._connection.recv()
                self.ready = True
                if kind != "ready":
                    self._told = kind, text
        except (EOFError, OSError):
            pass  # it ended: its status says how

    def failure(self) -> tuple[int, str] | None:
        """What went wrong with it, if anything did, after how likely it is the first cause."""
        status = self.process.poll()
        self.listen()
        if self._told is not None:
            kind, text = self._told
            return (2 if kind == "lost" else 0), f"failed: {text}"
        if status is not None and status < 0:
            return 0, f"was killed by {signal.Signals(-status).name}"
        if status is not None:
            return 1, f"ended with status {status}"
        if self._stopped():
            return 1, f"has been stopped (SIGSTOP) for {STOPPED_S:g} s"
        return None

    def _stopped(self) -> bool:
        """True when the system says so for a while. Only Linux is asked."""
        try:
            stat = Path(f"/proc/{self.process.pid}/stat").read_text()
        except OSError:
            return False
        if stat.rpartition(")")[2].split()[0] not in ("T", "t"):
            self._stopped_polls = 0
            return False
        self._stopped_polls += 1
        return self._stopped_polls * POLL_S >= STOPPED_S

    def last_words(self) -> str:
        """The end of its standard error and output."""
        self._words.seek(0)
        return self._words.read().decode(errors="replace")[-LAST_WORDS:].strip()

    def end(self) -> None:
        """Kill it if it is still there, and let go of everything."""
        self.process.kill()
        self.process.wait()

    def release(self) -> None:
        """Close what is left of an ended process."""
        self._connection.close()
        self._words.close()


class Workers:
    """The processes of ranks 1 to size - 1, under watch.

    The first failure ends them all, so that whatever rank 0 waits for fails too; `cause` says why.
    """

    def __init__(self, size: int) -> None:
        self.on_failure: Callable[[], None] = lambda: None
        self._cause: str | None = None
        self._known = threading.Event()
        self._closed = threading.Event()
        self._all: list[Worker] = []
        self._watch = threading.Thread(target=self._look, daemon=True, name="rank watch")
        try:
            for rank in range(1, size):
                self._all.append(Worker(rank))
        except BaseException:
            self.close(0)
            raise

    def greet(self, hello: Callable[[int], Hello]) -> None:
        """Say hello to each; the watch begins. Returns when all are ready to join.

        Raises RankError when one cannot be.
        """
        for worker in self._all:
            worker.greet(hello(worker.rank))
        self._watch.start()
        while not all(worker.ready for worker in self._all) and not self._known.wait(POLL_S / 4):
            pass
        self.check()

    def run(self, work: Callable[[], T]) -> T:
        """What `work` returns; RankError as soon as a rank fails, whether or not it returns."""
        results: list[T] = []
        errors: list[Exception] = []

        def attempt() -> None:
            try:
                results.append(work())
            except Exception as error:
                errors.append(error)

        thread = threading.Thread(target=attempt, daemon=True)
        thread.start()
        while thread.is_alive() and not self._known.is_set():
            thread.join(POLL_S / 4)
        if not results:
            self._known.wait(CAUSE_S)
            self.check()
            raise errors[0]
        return results[0]

    def check(self) -> None:
        """Raise RankError if a rank has failed."""
        if self._cause is not None:
            raise RankError(self._cause)

    def cause(self) -> str | None:
        """Why a call failed; waits a little until it is known."""
        self._known.wait(CAUSE_S)
        return self._cause

    def _look(self) -> None:
        while not self._closed.wait(POLL_S):
            cause = self._first_cause()
            if cause is not None and not self._closed.is_set():
                self._cause = cause
                for worker in self._all:
                    worker.end()
                self._known.set()
                self.on_failure()
                return

    def _first_cause(self) -> str | None:
        """What failed, if something did: a rank that only lost another is waited for that other."""
        left = LOST_POLLS
        while found := [(*failure, w) for w in self._all if (failure := w.failure())]:
            likely, what, worker = min(found, key=lambda each: each[0])
            if likely < 2 or left == 0:
                words = worker.last_words()
                after = f"; its last words:\n{words}" if words else ""
                return f"rank {worker.rank} (process {worker.process.pid}) {what}{after}"
            left -= 1
            time.sleep(POLL_S)
        return None

    def close(self, wait_s: float) -> None:
        """End the watch, and every process that has not left after `wait_s`."""
        self._closed.set()
        if self._watch.is_alive():
            self._watch.join()
        for worker in self._all:
            with suppress(subprocess.TimeoutExpired):
                worker.process.wait(wait_s)
            worker.end()
            worker.release()
        self._all.clear()
