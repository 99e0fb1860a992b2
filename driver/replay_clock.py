"""Time as a run recorded it, for serving the run again."""

from collections.abc import Sequence

from interlock.core.clock import Clock


class ReplayClock(Clock):
    """Gives back the times that an earlier run recorded, one per reading; then only waits count."""

    def __init__(self, times_s: Sequence[float]) -> None:
        self._times = list(times_s)
        self._next = 0

    def now(self) -> float:
        """The next recorded reading."""
        if self._next < len(self._times):
            self._next += 1
        return self._times[self._next - 1] if self._next else 0.0

    def wait_until(self, time_s: float) -> None:
        """Nothing before the last reading (they lie after every wait); jumps after it."""
        if self._next == len(self._times) and time_s > self.now():
            self._times.append(time_s)

    def advance(self, duration_s: float | None) -> None:
        """Nothing: the recorded readings include durations."""
