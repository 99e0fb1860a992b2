"""Typed access to a config.json: what is missing or out of range is collected, then reported."""

import sys
from collections.abc import Mapping, Sequence
from typing import Any

from interlock.core.errors import CheckpointError


class Fields:
    """Reads a config's fields; `check` raises one CheckpointError with every problem found.

    A field that is absent or null takes its default; without a default it is a problem. Until
    `check` passes, problematic fields read as stand-in values.
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        self.config = config
        self.problems: list[str] = []

    def integer(self, key: str, default: int | None = None, least: int = 1) -> int:
        """An integer >= `least`."""
        value = self._value(key, default)
        if type(value) is int and value >= least:
            return value
        self._refuse(key, f"an integer >= {least}")
        return least

    def number(self, key: str, default: float | None = None) -> float:
        """A finite number > 0."""
        value = self._value(key, default)
        if type(value) in (int, float) and 0 < value <= sys.float_info.max:
            return float(value)
        self._refuse(key, "a finite number > 0")
        return 1.0

    def optional_number(self, key: str, default: float | None) -> float | None:
        """A finite number > 0, or None where the config says null; `default` where it is absent."""
        if key not in self.config or self.config[key] is None:
            return default if key not in self.config else None
        return self.number(key)

    def flag(self, key: str, default: bool) -> bool:
        """True or false."""
        value = self._value(key, default)
        if isinstance(value, bool):
            return value
        self._refuse(key, "true or false")
        return default

    def choice(self, key: str, default: str, allowed: Sequence[str]) -> str:
        """One of `allowed`."""
        value = self._value(key, default)
        if value in allowed:
            return str(value)
        self._refuse(key, f"one of {', '.join(allowed)}")
        return default

    def require(self, holds: bool, problem: str) -> None:
        """Note `problem` unless it holds."""
        if not holds:
            self.problems.append(problem)

    def check(self) -> None:
        """Raise CheckpointError with all problems, if there are any."""
        if self.problems:
            raise CheckpointError("; ".join(self.problems))

    def _value(self, key: str, default: Any) -> Any:
        value = self.config.get(key)
        return default if value is None else value

    def _refuse(self, key: str, allowed: str) -> None:
        self.problems.append(f"{key}={self.config.get(key)!r} is not {allowed}")
