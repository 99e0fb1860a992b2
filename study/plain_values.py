"""Frozen dataclasses of plain values as strict JSON, which has no NaN, and back from it."""

import collections.abc
import dataclasses
import math
import types
import typing
from typing import Any, TypeVar

T = TypeVar("T")


def strict(value: Any) -> Any:
    """The same plain values with null for every number that is not finite: JSON has none."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {key: strict(item) for key, item in value.items()}
    return [strict(item) for item in value] if isinstance(value, list | tuple) else value


def rebuild(kind: type[T], values: Any) -> T:
    """The `kind` whose fields these are. Keys that it lacks are left out (an older reader).

    null is NaN where the field is a number, None where it may be None.
    """
    hints = typing.get_type_hints(kind)
    names = {field.name for field in dataclasses.fields(kind)}  # type: ignore[arg-type]
    return kind(**{k: _value(hints[k], v) for k, v in values.items() if k in names})


def _value(kind: Any, value: Any) -> Any:
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin in (types.UnionType, typing.Union):
        of = [one for one in inner if one is not type(None)]
        return None if value is None else _value(of[0], value) if len(of) == 1 else value
    if kind is float:
        return math.nan if value is None else value
    if dataclasses.is_dataclass(kind):
        return rebuild(typing.cast(type[Any], kind), value)
    if origin is tuple:
        return tuple(_value(inner[0], item) for item in value)
    if origin in (dict, collections.abc.Mapping):
        return {key: _value(inner[1], item) for key, item in value.items()}
    return value
