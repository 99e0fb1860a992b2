"""Alternating measurements and what they say: medians, and the interval of a paired ratio."""

import random
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

DRAWS = 2000
LEVEL = 0.95


@dataclass(frozen=True)
class Ratio:
    """The median of paired ratios, with the bootstrap interval of that median."""

    median: float
    low: float
    high: float

    @property
    def tie(self) -> bool:
        """Whether the interval holds 1."""
        return self.low <= 1.0 <= self.high

    def __str__(self) -> str:
        return f"{self.median:.2f} [{self.low:.2f}, {self.high:.2f}]"


def paired_ratio(above: Sequence[float], below: Sequence[float]) -> Ratio:
    """Of measurements that were taken one beside the other: above[i] / below[i]."""
    ratios = [a / b for a, b in zip(above, below, strict=True)]
    draw = random.Random(0)
    medians = sorted(statistics.median(draw.choices(ratios, k=len(ratios))) for _ in range(DRAWS))
    tail = round((1 - LEVEL) / 2 * DRAWS)
    return Ratio(statistics.median(ratios), medians[tail], medians[-1 - tail])


def interleaved(
    runs: Mapping[str, Callable[[], float]], repeats: int, progress: "Progress", what: str
) -> dict[str, list[float]]:
    """`repeats` measurements of each, in turns, every other turn backwards."""
    samples: dict[str, list[float]] = {name: [] for name in runs}
    for repeat in range(repeats):
        order = list(runs) if repeat % 2 == 0 else list(reversed(runs))
        for name in order:
            progress.say(f"{what}: {name}, {repeat + 1} of {repeats}")
            samples[name].append(runs[name]())
    medians = ", ".join(f"{name} {statistics.median(v):.4g}" for name, v in samples.items())
    progress.keep(f"{what}: {medians}")
    return samples


class Progress:
    """On stderr, a line that says what runs now (if a person looks), and lines that stay."""

    def __init__(self) -> None:
        self.start_s = time.perf_counter()
        self.shown = sys.stderr.isatty()

    def say(self, text: str) -> None:
        """Replace the line."""
        if self.shown:
            passed_s = time.perf_counter() - self.start_s
            print(f"\r\x1b[K{passed_s:5.0f} s  {text}", end="", file=sys.stderr, flush=True)

    def keep(self, text: str) -> None:
        """A line that stays."""
        self.clear()
        print(f"{time.perf_counter() - self.start_s:5.0f} s  {text}", file=sys.stderr, flush=True)

    def clear(self) -> None:
        """Remove the line."""
        if self.shown:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
