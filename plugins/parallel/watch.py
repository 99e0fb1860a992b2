"""A thread that looks after the processes of other ranks, and says what became of them."""

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path

from interlock.core.errors import RankError

POLL_S = 0.2
STOPPED_S = 3.0
"""A process that is stopped (SIGSTOP) for so long will not be waited for."""
LOST_POLLS = 5
"""How often a rank that only lost another is looked at before it counts as the cause."""
CAUSE_S = 3.0
"""How long a failed call waits to learn why: the watch sees a death a moment later."""

FIRST, LIKELY, FOLLOWING = range(3)
"""How a failure stands to others at the same time: one that merely follows is not the cause."""


class Watched(ABC):
    """The process of one rank, as another sees it."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.pid = 0
        self._stopped_polls = 0

    @abstractmethod
    def failure(self) -> tuple[int, str] | None:
        """What went wrong with it, if anything did, after how it stands to other failures."""

    @abstractmethod
    def end(self) -> None:
        """Kill it if it is still there."""

    def last_words(self) -> str:
        """The end of its standard error, where it is known."""
        return ""

    def stopped(self) -> bool:
        """True when the system says so for a while. Only Linux is asked."""
        if process_state(self.pid) not in ("T", "t"):
            self._stopped_polls = 0
            return False
        self._stopped_polls += 1
        return self._stopped_polls * POLL_S >= STOPPED_S


def process_state(pid: int) -> str | None:
    """Linux's letter for what a process does (T: stopped, Z: ended); None when there is none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return None


class Watch:
    """Ends all ranks when one has failed, so that what rank 0 waits for fails too.

    `cause` says why. `on_failure` is called last, in the watch's thread.
    """

    def __init__(self, watched: Sequence[Watched]) -> None:
        self.on_failure: Callable[[], None] = lambda: None
        self.failed = threading.Event()
        self._watched = watched
        self._cause: str | None = None
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True, name="rank watch")

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def end(self) -> None:
        """Look no more."""
        self._over.set()
        if self._thread.is_alive():
            self._thread.join()

    def check(self) -> None:
        """Raise RankError if a rank has failed."""
        if self._cause is not None:
            raise RankError(self._cause)

    def cause(self) -> str | None:
        """Why a call failed; waits a little until it is known."""
        self.failed.wait(CAUSE_S)
        return self._cause

    def _look(self) -> None:
        while not self._over.wait(POLL_S):
            cause = self._first_cause()
            if cause is not None and not self._over.is_set():
                self._cause = cause
                for watched in self._watched:
                    watched.end()
                self.failed.set()
                self.on_failure()
                return

    def _first_cause(self) -> str | None:
        for _ in range(LOST_POLLS):
            found = [(*failure, w) for w in self._watched if (failure := w.failure())]
            if not found:
                return None
            how, what, watched = min(found, key=lambda each: each[0])
            if how < FOLLOWING or self._over.wait(POLL_S):
                break
        words = watched.last_words()
        after = f"; its last words:\n{words}" if words else ""
        return f"parallel=tensor: rank {watched.rank} (process {watched.pid}) {what}{after}"
