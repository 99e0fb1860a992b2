"""Ctrl-C as a request to stop after the step that runs, and how a program ends that was stopped."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
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


class Terminated(KeyboardInterrupt):
    """SIGTERM: somebody else than the terminal asks to stop, as systems do before they go down."""


def status_of(stop: KeyboardInterrupt) -> int:
    """What a program that was stopped ends with: 128 and the number of the signal."""
    return 128 + (signal.SIGTERM if isinstance(stop, Terminated) else signal.SIGINT)


def terminate(_number: int, _frame: FrameType | None) -> None:
    """A handler of SIGTERM."""
    raise Terminated


@contextmanager
def stopped_once() -> Iterator[None]:
    """Ctrl-C and SIGTERM raise KeyboardInterrupt inside, once: what follows may clean up in peace.

    Nothing changes for a signal that is ignored or handled by somebody else, and outside the main
    thread.
    """
    stopped = False

    def stop(number: int, _frame: FrameType | None) -> None:
        nonlocal stopped
        if not stopped:
            stopped = True
            raise Terminated if number == signal.SIGTERM else KeyboardInterrupt

    usual = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}
    if threading.current_thread() is not threading.main_thread():
        usual.clear()
    before = {one: signal.getsignal(one) for one in usual if signal.getsignal(one) is usual[one]}
    for one in before:
        signal.signal(one, stop)
    try:
        yield
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)
