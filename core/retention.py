"""How long a request asks for its cached pages to stay, by ranges of tokens.

As TensorRT-LLM's KvCacheRetentionConfig: priorities from 0 to 100 where 35 is what nobody asked
about, durations that count from the last use, after which a page is one of priority 35 again. The
eviction policy may follow it (`cache/eviction=priority` does).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from interlock.core.errors import shown

DEFAULT_PRIORITY, MOST_PRIORITY = 35, 100
NO_END = float("inf")
MOST_S = 1e12
"""Longer than any run: 30,000 years."""
MOST_TOKENS = 1 << 62
"""Beyond any prompt: nothing comes after a range without an end."""
RETAIN_S = "retain_s"
"""The place in `Run.state` of the seconds for which the run's priority holds after its last use."""


class Said(NamedTuple):
    """What a request says of one page."""

    priority: int
    duration_s: float


@dataclass(frozen=True)
class RetainedRange:
    """Prompt tokens start .. end - 1 (None: to the end); `duration_s` None: for ever."""

    start: int = 0
    end: int | None = None
    priority: int = DEFAULT_PRIORITY
    duration_s: float | None = None


@dataclass(frozen=True)
class Retention:
    """What a request asks for: ranges of its prompt in rising order, and its output."""

    ranges: tuple[RetainedRange, ...] = ()
    output_priority: int = DEFAULT_PRIORITY
    output_duration_s: float | None = None

    def of(self, token: int, num_prompt: int) -> Said | None:
        """Of the page whose first token is this one; None where nothing is said."""
        if token >= num_prompt:
            return _said(self.output_priority, self.output_duration_s)
        for one in self.ranges:
            if one.start <= token and (one.end is None or token < one.end):
                return _said(one.priority, one.duration_s)
        return None


def problems_of(wanted: object) -> list[str]:
    """Everything that is wrong with a request's retention, each with what is allowed."""
    ranges = wanted.ranges if isinstance(wanted, Retention) else None
    sound = isinstance(ranges, tuple) and all(isinstance(one, RetainedRange) for one in ranges)
    if not (isinstance(wanted, Retention) and sound):
        return [f"retention={shown(wanted)} is not a Retention of RetainedRanges"]
    return [*_wrong_values(wanted), *_wrong_places(wanted)]


def _wrong_values(wanted: Retention) -> Iterator[str]:
    values = [(one.priority, one.duration_s) for one in wanted.ranges]
    for priority, duration_s in [*values, (wanted.output_priority, wanted.output_duration_s)]:
        if type(priority) is not int or not 0 <= priority <= MOST_PRIORITY:
            allowed = f"an integer from 0 to {MOST_PRIORITY}"
            yield f"retention priority {shown(priority)} is not {allowed}"
        if duration_s is not None and not (_is_number(duration_s) and 0 < duration_s <= MOST_S):
            yield f"retention duration_s {shown(duration_s)} is not a number above 0, or null"


def _wrong_places(wanted: Retention) -> Iterator[str]:
    reached = 0
    for one in wanted.ranges:
        if type(one.start) is not int or one.start < reached:
            yield f"retention range start {shown(one.start)} is not an integer >= {reached}"
            return
        if one.end is not None and (type(one.end) is not int or one.end <= one.start):
            yield f"retention range end {shown(one.end)} is not an integer above {one.start}"
            return
        reached = MOST_TOKENS if one.end is None else one.end


def _said(priority: int, duration_s: float | None) -> Said:
    return Said(priority, NO_END if duration_s is None else duration_s)


def _is_number(value: object) -> bool:
    return type(value) in (int, float)
