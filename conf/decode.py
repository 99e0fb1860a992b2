"""Plain values as typed configs: the one place that reads what a user wrote."""

import dataclasses
import json
import sys
import types
import typing
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, TypeVar

from interlock.conf.overrides import quoted
from interlock.core.closest import unknown_name
from interlock.core.errors import ConfigError
from interlock.core.options import options_of

T = TypeVar("T")


def decode(
    kind: type[T],
    values: Mapping[str, Any],
    path: str,
    problems: list[str],
    also_known: Collection[str] = (),
) -> T | None:
    """An instance of the config dataclass `kind` from plain values found at config key `path`.

    Every unknown key, every value of a wrong type and every refusal of the dataclass itself
    (ValueError or ConfigError from its `__post_init__`) is added to `problems`; what is wrong or
    left out takes its default, so that the rest can still be judged. None when the dataclass
    refuses. `also_known` are names to suggest that are options of somebody else.
    """
    fields = {f.name for f in options_of(kind)}
    hints = typing.get_type_hints(kind)
    found: dict[str, Any] = {}
    for key, value in values.items():
        where = f"{path}.{key}" if path else str(key)
        if key not in fields:
            known = {*fields, *also_known} - {"name"}
            problems.append(unknown_name(f"{path} option".strip(), str(key), known))
        elif dataclasses.is_dataclass(hints[key]) and isinstance(value, Mapping):
            nested = decode(typing.cast(type, hints[key]), value, where, problems)
            found |= {} if nested is None else {key: nested}
        else:
            try:
                found[key] = convert(hints[key], value)
            except ValueError:
                problems.append(_misfit(where, value, hints[key]))
    try:
        return kind(**found)
    except (ValueError, ConfigError) as error:
        listed = error.problems if isinstance(error, ConfigError) else [str(error)]
        problems.extend(_placed(path, problem, fields) for problem in listed)
        return None


def _misfit(where: str, value: Any, hint: Any) -> str:
    """That the value is of another type; how a single item is a list, and a mapping a text."""
    problem = f"{where}={value!r} is not {describe(hint)}"
    text = json.dumps(value) if isinstance(value, Mapping) else None
    for other, written in (([value], f"{where}=[{value}]"), (text, quoted(f"{where}={text}"))):
        try:
            if other is not None:
                convert(hint, other)
                return f"{problem}; write {written}"
        except ValueError:
            continue
    return problem


def _placed(path: str, problem: str, fields: Collection[str]) -> str:
    """`option=value is not ...` with the option's whole key; anything else after the path."""
    if not path:
        return problem
    return f"{path}{'.' if problem.partition('=')[0] in fields else ': '}{problem}"


def convert(hint: Any, value: Any) -> Any:
    """`value` as a value of this type; ValueError when it is none.

    Whole numbers are numbers, numbers are text where text is asked for, lists are tuples where a
    tuple is asked for. Nothing else is converted; true and false are never numbers, and numbers
    are finite (a run's configuration is written as JSON).
    """
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any:
        return value
    if origin in (typing.Union, types.UnionType):
        return _convert_union(arguments, value)
    if origin is typing.Literal:
        return _checked(value, value in arguments)
    if origin in (list, tuple):
        return origin(_convert_items(arguments, value))
    if origin is dict:
        _checked(value, isinstance(value, Mapping))
        return {
            convert(arguments[0], key): convert(arguments[1], item) for key, item in value.items()
        }
    return _convert_scalar(hint, value)


def _convert_items(arguments: tuple[Any, ...], value: Any) -> list[Any]:
    """The items of a list or tuple; pairs may come as a mapping, whose keys YAML may quote."""
    if isinstance(value, Mapping) and len(typing.get_args(arguments[0])) == 2:
        value = [(int(k) if str(k).isdecimal() else k, item) for k, item in value.items()]
    items = _checked(value, isinstance(value, list | tuple))
    if len(arguments) == 2 and arguments[1] is not ...:
        _checked(items, len(items) == len(arguments))
        return [convert(kind, item) for kind, item in zip(arguments, items, strict=True)]
    return [convert(arguments[0], item) for item in items]


def _convert_union(kinds: tuple[Any, ...], value: Any) -> Any:
    if value is None:
        return _checked(value, type(None) in kinds)
    for kind in sorted(kinds, key=lambda kind: type(value) is not kind):  # its own type first
        try:
            return convert(kind, value)
        except ValueError:
            continue
    raise ValueError(value)


def _convert_scalar(kind: Any, value: Any) -> Any:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if kind is float:
        return float(_checked(value, number and abs(value) <= sys.float_info.max))
    if kind is int:
        return _checked(value, number and isinstance(value, int))
    if kind is str:
        return str(_checked(value, number or isinstance(value, str)))
    if kind is Path:
        return Path(_checked(value, isinstance(value, str | Path)))
    return _checked(value, isinstance(value, kind))


def _checked(value: Any, good: bool) -> Any:
    if not good:
        raise ValueError(value)
    return value


def describe(hint: Any) -> str:
    """A type in plain words, for error messages and help."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return " or ".join(describe(kind) for kind in arguments)
    if origin is typing.Literal:
        return "one of " + ", ".join(str(choice) for choice in arguments)
    if origin is tuple and ... not in arguments:
        return f"a pair [{', '.join(describe(kind) for kind in arguments)}]"
    if origin in (list, tuple):
        found = f"a list [...], each item {describe(arguments[0])}"
        pair = typing.get_args(arguments[0])
        if typing.get_origin(arguments[0]) is tuple and ... not in pair and len(pair) == 2:
            key, item = map(describe, pair)
            return f"{found}, or {{{key}: {item}}}"
        return found
    if dataclasses.is_dataclass(hint):
        return "a group of options"
    words = {
        int: "a whole number", float: "a finite number", str: "text", bool: "true or false",
        type(None): "null", Path: "a path",
    }  # fmt: skip
    return words.get(hint, getattr(hint, "__name__", str(hint)))
