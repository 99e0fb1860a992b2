"""What stores whose calls may hang share: worker threads, several entries at a time, a pause."""

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import TypeVar

from interlock.core.clock import WallClock
from interlock.core.tier import Key
from interlock.plugins.cache.tiers.counted import CountedTier
from interlock.plugins.cache.tiers.deadline import Call, Pause, TooSlowError, Workers

T = TypeVar("T")
Begun = Callable[[float], bool]
"""A call under way: waits for it so many seconds, and says whether it succeeded."""


class ParallelTier(CountedTier):
    """A store that reads and writes in threads of its own, several entries at the same time.

    A call that ends too late, or finds nobody, makes it say no at once for a while.
    """

    at_once = 16

    def __init__(self, workers: Workers, pause: Pause) -> None:
        """`workers` end with the store."""
        super().__init__()
        self._workers, self._pause = workers, pause

    @abstractmethod
    def begin_write(self, key: Key, data: memoryview) -> Begun:
        """See KVTier.write."""

    @abstractmethod
    def begin_read(self, key: Key, into: memoryview) -> Begun:
        """See KVTier.read."""

    @abstractmethod
    def reason_of(self, error: Exception) -> tuple[str, bool] | None:
        """What to count for an error of a call, and whether there is no use in asking again soon.

        None: it is an error of this program.
        """

    def write(self, key: Key, data: memoryview) -> bool:
        """See KVTier."""
        return self.wait(self.begin_write(key, data))

    def read(self, key: Key, into: memoryview) -> bool:
        """See KVTier."""
        return self.wait(self.begin_read(key, into))

    def write_many(self, keys: Sequence[Key], data: Sequence[memoryview]) -> list[bool]:
        """See KVTier."""
        return self._all(list(map(self.begin_write, keys, data)))

    def read_many(self, keys: Sequence[Key], into: Sequence[memoryview]) -> int:
        """See KVTier."""
        return [*self._all(list(map(self.begin_read, keys, into))), False].index(False)

    def close(self) -> None:
        """See KVTier."""
        self._workers.close()

    def wait(self, call: Begun) -> bool:
        """Whether a call succeeds within the time of one."""
        return call(self._workers.timeout_s)

    def begin(
        self,
        fetch: Callable[[], T],
        deliver: Callable[[T], None] = lambda _: None,
        undo: Callable[[], None] = lambda: None,
    ) -> Begun:
        """Run these in a worker (see there); why that failed is counted when it is waited for."""
        try:
            call = self._workers.begin(fetch, deliver, undo)
        except TooSlowError:
            return self.refused("timeout")
        return lambda timeout_s: self._succeeded(call, timeout_s)

    def refused(self, reason: str) -> Begun:
        """Count a reason: a call that has failed already."""
        self.failed(reason)
        return lambda _timeout_s: False

    def _succeeded(self, call: Call[T], timeout_s: float) -> bool:
        try:
            call.wait(timeout_s)
        except TooSlowError:
            self._pause.begin()
            return self.failed("timeout")
        except Exception as error:
            if (known := self.reason_of(error)) is None:
                raise
            reason, lost = known
            (self._pause.begin if lost else self._pause.end)()
            return self.failed(reason)
        self._pause.end()
        return True

    def _all(self, calls: list[Begun]) -> list[bool]:
        """Which of these succeed within the time of one.

        The last is waited for first: the others have mostly ended by then, and the caller wakes
        once.
        """
        now = WallClock().now
        until_s = now() + self._workers.timeout_s
        return [call(max(0.0, until_s - now())) for call in reversed(calls)][::-1]
