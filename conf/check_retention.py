"""What a request's retention may be (`core/retention.py`)."""

from collections.abc import Iterator

from interlock.core.errors import shown
from interlock.core.retention import RetainedRange, Retention

MOST_PRIORITY = 100
MOST_S = 1e12
"""Longer than any run: 30,000 years."""
MOST_TOKENS = 1 << 62
"""Beyond any prompt: nothing comes after a range without an end."""


def retention_problems(wanted: object) -> list[str]:
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


def _is_number(value: object) -> bool:
    return type(value) in (int, float)
