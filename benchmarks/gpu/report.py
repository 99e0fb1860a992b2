"""Sections of a suite with a time budget each, and the lines they leave."""

import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

import torch


@dataclass
class Line:
    """One line of the table: what was checked or timed, what came out, and whether it is right."""

    section: str
    case: str
    result: str
    ok: bool | None = True
    """None: not run, and `result` says why."""
    numbers: dict[str, Any] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """All of it."""
        return asdict(self)


class Budget:
    """Seconds that a section may still use."""

    def __init__(self, seconds: float) -> None:
        self.end_s = time.perf_counter() + seconds

    @property
    def over(self) -> bool:
        """True once they are used up."""
        return time.perf_counter() >= self.end_s


Section = Callable[[Budget], Iterator[Line]]


def lines_of(name: str, section: Section, seconds: float) -> Iterator[Line]:
    """The section's lines; an exception is a line, and ends it."""
    try:
        yield from section(Budget(seconds))
    except Exception as error:
        text = f"{type(error).__name__}: {error}".splitlines()[0][:200]
        yield Line(name, "stopped", text, ok=False)


def seconds_on(device: torch.device, run: Callable[[], Any], repeats: int = 5) -> float:
    """Median seconds of one call, by CUDA events around enough calls to last some milliseconds."""
    run()
    torch.cuda.synchronize(device)
    start = time.perf_counter()
    run()
    torch.cuda.synchronize(device)
    once_s = time.perf_counter() - start
    calls = max(1, min(200, round(0.005 / max(once_s, 1e-6))))
    taken = []
    for _ in range(repeats):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for _ in range(calls):
            run()
        end.record()
        torch.cuda.synchronize(device)
        taken.append(begin.elapsed_time(end) / 1e3 / calls)
    return sorted(taken)[repeats // 2]
