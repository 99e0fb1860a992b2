"""Options: dataclass fields with a help line, and their defaults as plain values."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def option(default: Any, help: str, **more: Any) -> Any:
    """A dataclass field with this default and help line; a dataclass default becomes nested.

    `more` is kept in the field's metadata.
    """
    metadata = {"help": help, **more}
    if isinstance(default, type):
        return dataclasses.field(default_factory=default, metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


def defaults_of(kind: type) -> dict[str, Any]:
    """The options of a config dataclass with their defaults, as nested plain values."""
    return {f.name: plain(getattr(kind(), f.name)) for f in options_of(kind)}


def plain(value: Any) -> Any:
    """`value` as dicts, lists and scalars, for YAML, JSON and Hydra."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: plain(getattr(value, f.name)) for f in options_of(type(value))}
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(item) for item in value]
    return str(value) if isinstance(value, Path) else value


def options_of(kind: type) -> list["dataclasses.Field[Any]"]:
    """The fields of a config dataclass that a user may set."""
    return [f for f in dataclasses.fields(kind) if f.init and f.metadata.get("option", True)]
