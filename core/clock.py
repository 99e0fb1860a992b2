"""Time as the engine sees it: the wall's, or a simulated one."""

import time
from abc import ABC, abstractmethod

from interlock.core.errors import InterlockError


class Clock(ABC):
    """Seconds since the run began. Only drivers read clocks; components get values.

    An executor measures where the time of a step went.
    """

    @abstractmethod
    def now(self) -> float:
        """The current time."""

    @abstractmethod
    def wait_until(self, time_s: float) -> None:
        """Return once `now()` is at least `time_s`, or before: whoever waits looks again."""

    @abstractmethod
    def advance(self, duration_s: float | None) -> None:
        """A step took this long (None: as long as it took)."""


class WallClock(Clock):
    """Real time. A wait is cut into naps, between which a run can show progress or be stopped."""

    NAP_S = 0.1

    def __init__(self) -> None:
        self._start = time.perf_counter()

    def now(self) -> float:
        """See Clock."""
        return time.perf_counter() - self._start

    def wait_until(self, time_s: float) -> None:
        """Sleeps for a nap at most."""
        delay_s = time_s - self.now()
        if delay_s > 0:
            time.sleep(min(delay_s, self.NAP_S))

    def advance(self, duration_s: float | None) -> None:
        """Nothing: real time passes by itself."""


class VirtualClock(Clock):
    """Simulated time: waiting costs nothing, steps last what the executor says."""

    def __init__(self) -> None:
        self._now = 0.0

    def now(self) -> float:
        """See Clock."""
        return self._now

    def wait_until(self, time_s: float) -> None:
        """Jumps."""
        self._now = max(self._now, time_s)

    def advance(self, duration_s: float | None) -> None:
        """Moves on by the step's duration.

        Raises:
            InterlockError: the executor gave no duration.
        """
        if duration_s is None or not 0 <= duration_s < float("inf"):
            raise InterlockError(
                f"a virtual clock needs finite step durations >= 0, got {duration_s}"
            )
        self._now += duration_s
