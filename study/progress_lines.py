"""How far a study is, for a log file: a line now and then where no bar can be drawn."""

import time
from collections.abc import Callable
from typing import TextIO

from interlock.study.order import Place


class ProgressLines:
    """Tells of a run that is done, at most every `every_s` seconds and of the last one always."""

    def __init__(
        self,
        to: TextIO,
        *,
        shown: bool = True,
        every_s: float = 10.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._to, self._shown, self._every_s, self._clock = to, shown, every_s, clock
        self._begin_s = clock()
        self._next_s = self._begin_s + every_s

    def tell(self, done: int, total: int, place: Place) -> None:
        """`done` of `total` runs are behind us; the newest is at `place`."""
        now_s = self._clock()
        if not self._shown or (now_s < self._next_s and done < total):
            return
        self._next_s = now_s + self._every_s
        said = f"{done}/{total} runs, {now_s - self._begin_s:.0f} s, {place.folder}"
        print(said, file=self._to, flush=True)
