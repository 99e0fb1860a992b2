"""Ctrl-C as a request to stop after the step that runs."""

import signal
import threading
from types import FrameType, TracebackType
from typing import Any


class Interrupts:
    """`asked` becomes true at the first Ctrl-C inside the context; a second one is raised.

    A step that is cut in two would leave its accounts half written. Nothing changes where Ctrl-C
    is ignored (a background job) or handled by somebody else, and outside the main thread, where
    Python delivers no signals.
    """

    def __init__(self) -> None:
        self.asked = False
        self._before: Any = None

    def __enter__(self) -> "Interrupts":
        usual = signal.getsignal(signal.SIGINT) is signal.default_int_handler
        if usual and threading.current_thread() is threading.main_thread():
            self._before = signal.signal(signal.SIGINT, self._note)
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)

    def _note(self, _signal: int, _frame: FrameType | None) -> None:
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True
