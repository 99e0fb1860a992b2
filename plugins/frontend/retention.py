"""The `retention` of a line of requests, as TensorRT-LLM's KvCacheRetentionConfig says it.

{"ranges": [{"start": 0, "end": 512, "priority": 80, "duration_s": 60}], "output_priority": 10}
"""

from dataclasses import fields
from typing import Any, TypeVar

from interlock.core.closest import unknown_name
from interlock.core.errors import RequestError
from interlock.core.retention import RetainedRange, Retention

T = TypeVar("T", Retention, RetainedRange)


def read_retention(value: Any) -> Retention | None:
    """What a line's value asks for, None for nothing; RequestError for what is no retention.

    Intake judges its numbers.
    """
    if value is None:
        return None
    found = _read(Retention, value)
    if not isinstance(found.ranges, tuple | list):
        raise RequestError(f"retention.ranges={found.ranges!r} is not a list")
    ranges = tuple(_read(RetainedRange, one) for one in found.ranges)
    return Retention(ranges, found.output_priority, found.output_duration_s)


def _read(kind: type[T], value: Any) -> T:
    if not isinstance(value, dict):
        raise RequestError(f"retention: {value!r} is not an object")
    known = tuple(field.name for field in fields(kind))
    for key in value:
        if key not in known:
            raise RequestError(f"retention: {unknown_name('key', key, known)}")
    return kind(**value)
