"""Starts the other ranks' processes on this machine."""

import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import IO, Any, TypeVar

from interlock.plugins.parallel.watch import CAUSE_S, FIRST, FOLLOWING, LIKELY, Watch, Watched
from interlock.plugins.parallel.worker import Hello

T = TypeVar("T")
LOOK_S = 0.05
"""How often a starting rank is looked at."""
LEAVE_S = 10.0
"""How long a rank may take to leave after the last plan."""
LAST_WORDS = 60
"""Lines of a worker's standard error in a message: a traceback and what was said before it."""
LAST_BYTES = 1 << 16
"""No more of it is read, however long its lines are."""


class Worker(Watched):
    """The process of one rank."""

    def __init__(self, rank: int) -> None:
        super().__init__(rank)
        self.ready = False
        self._told: tuple[str, str] | None = None
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
        self.pid = self.process.pid
        theirs.close()
        self._connection: Connection[Any, Any] = Connection(ours.detach())

    def greet(self, hello: Hello) -> None:
        """Tell the worker who it is."""
        with suppress(OSError):  # it ended: its status says how
            self._connection.send(hello)

    def failure(self) -> tuple[int, str] | None:
        """See Watched; takes in what the worker has said."""
        status = self.process.poll()
        self._listen()
        if self._told is not None:
            kind, text = self._told
            return (FOLLOWING if kind == "lost" else FIRST), f"failed: {text}"
        if status is not None and status < 0:
            names = {int(known): known.name for known in signal.Signals}  # not all have one
            return FIRST, f"was killed by {names.get(-status, f'signal {-status}')}"
        if status:
            return LIKELY, f"ended with status {status}"
        return (LIKELY, "has been stopped (SIGSTOP)") if self.stopped() else None

    def _listen(self) -> None:
        with suppress(EOFError, OSError):  # it ended: its status says how
            while self._connection.poll():
                kind, text = self._connection.recv()
                self.ready = True
                if kind != "ready":
                    self._told = kind, text

    def last_words(self) -> str:
        """See Watched."""
        size = self._words.seek(0, os.SEEK_END)
        self._words.seek(max(0, size - LAST_BYTES))
        lines = self._words.read().decode(errors="replace").strip().splitlines()
        return "\n".join(lines[-LAST_WORDS:])

    def end(self) -> None:
        """See Watched; waits until it is gone."""
        self.process.kill()
        self.process.wait()

    def release(self) -> None:
        """Close what is left of an ended process."""
        self._connection.close()
        self._words.close()


class Workers:
    """The processes of ranks 1 to size - 1, under watch."""

    def __init__(self, size: int) -> None:
        self._all: list[Worker] = []
        self.watch = Watch(self._all)
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
        self.watch.start()
        while not all(worker.ready for worker in self._all) and not self.watch.failed.wait(LOOK_S):
            pass
        self.watch.check()

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
        while thread.is_alive() and not self.watch.failed.is_set():
            thread.join(LOOK_S)
        if not results:
            self.watch.failed.wait(CAUSE_S)
            self.watch.check()
            raise errors[0]
        return results[0]

    def close(self, wait_s: float) -> None:
        """End the watch, and every process that has not left after `wait_s`."""
        self.watch.end()
        for worker in self._all:
            with suppress(subprocess.TimeoutExpired):
                worker.process.wait(wait_s)
            worker.end()
            worker.release()
        self._all.clear()
