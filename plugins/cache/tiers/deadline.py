"""Calls that may hang, made by other threads so that nobody waits longer than a stated time."""

import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, Generic, TypeVar

from interlock.core.clock import Clock, WallClock

T = TypeVar("T")


class TooSlowError(Exception):
    """The call did not end in time."""


class Pause:
    """Says no for a while after a call found its other side hanging or gone.

    When the while is over one caller may try; the others are still told no until it succeeded.
    """

    def __init__(self, retry_s: float, clock: Clock | None = None) -> None:
        self._retry_s, self._now = retry_s, (clock or WallClock()).now
        self._lock = threading.Lock()
        self._until_s: float | None = None

    def may_call(self) -> bool:
        """True if nothing speaks against a call now, or it is this caller's turn to try."""
        if self._until_s is None:
            return True
        with self._lock:
            if self._until_s is not None and self._now() < self._until_s:
                return False
            self._until_s = self._now() + self._retry_s
            return True

    def begin(self) -> None:
        """The other side hangs or is gone: no more calls for `retry_s`."""
        with self._lock:
            self._until_s = self._now() + self._retry_s

    def end(self) -> None:
        """The other side answered."""
        self._until_s = None


class Call(Generic[T]):
    """One job on its way through a worker; `_lock` decides whether it ended in time."""

    def __init__(
        self, fetch: Callable[[], T], deliver: Callable[[T], None], undo: Callable[[], None]
    ) -> None:
        self._fetch, self._deliver, self._undo = fetch, deliver, undo
        self._lock = threading.Lock()
        self._ended = threading.Lock()
        self._ended.acquire()
        self._too_late = self._delivered = False
        self._result: T | None = None
        self._error: BaseException | None = None

    def run(self) -> None:
        """In a worker: fetch, then deliver if the caller still waits; else, or on errors, undo."""
        try:
            if not self._too_late:
                result = self._fetch()
                with self._lock:
                    if not self._too_late:
                        self._deliver(result)
                        self._result, self._delivered = result, True
        except BaseException as error:
            self._error = error
        if not self._delivered:
            self._undo()
        self._ended.release()

    def wait(self, timeout_s: float) -> T:
        """In the caller: what fetch returned, or its error; TooSlowError after `timeout_s`."""
        if not self._ended.acquire(timeout=timeout_s):
            with self._lock:
                self._too_late = not self._delivered
            if self._too_late:
                raise TooSlowError
        if self._error is not None:
            raise self._error
        return self._result  # type: ignore[return-value]  # a T: nothing failed


class Workers:
    """Daemon threads that run calls of which each may hang without holding up its caller."""

    def __init__(self, threads: int, timeout_s: float, name: str) -> None:
        self.timeout_s = timeout_s
        self._closed = False
        self._jobs: SimpleQueue[Call[Any] | None] = SimpleQueue()
        self._threads = [
            threading.Thread(target=self._work, name=f"{name}-{i}", daemon=True)
            for i in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    def begin(
        self,
        fetch: Callable[[], T],
        deliver: Callable[[T], None] = lambda _: None,
        undo: Callable[[], None] = lambda: None,
    ) -> Call[T]:
        """A call that runs in a worker: `fetch`, then `deliver` with what it returns.

        After TooSlowError `deliver` never runs, so only `deliver` may touch what is the caller's,
        and it waits for nothing. `undo` runs unless `deliver` did, before the caller hears of an
        error, and raises nothing. Raises TooSlowError once closed.
        """
        if self._closed:
            undo()
            raise TooSlowError
        call = Call(fetch, deliver, undo)
        self._jobs.put(call)
        return call

    def call(self, fetch: Callable[[], T]) -> T:
        """What `fetch` returns; its error; TooSlowError after `timeout_s`."""
        return self.begin(fetch).wait(self.timeout_s)

    def close(self) -> None:
        """Let the threads end; waits no longer than one call may take."""
        self._closed = True
        for _ in self._threads:
            self._jobs.put(None)
        now = WallClock().now
        until_s = now() + self.timeout_s
        for thread in self._threads:
            thread.join(max(0.0, until_s - now()))

    def _work(self) -> None:
        while (call := self._jobs.get()) is not None:
            call.run()
            del call  # or the buffers of this call live until the next one
