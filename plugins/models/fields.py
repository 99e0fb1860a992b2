"""Typed access to a config.json: what is missing or out of range is collected, then reported."""

import sys
from collections.abc import Mapping, Sequence
from typing import Any

from interlock.core.errors import CheckpointError

MOST = {"num_hidden_layers": 10_000, "num_nextn_predict_layers": 10_000}
MOST_OTHERS = 2**40
"""Lists are made by layer: an absurd count must be refused before that."""


class Fields:
    """Reads a config's fields; `check` raises one CheckpointError with every problem found.

    A field that is absent or null takes its default; without a default it is a problem. Until
    `check` passes, problematic fields read as stand-in values.
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        self.config = config
        self.problems: list[str] = []

    def integer(
        self, key: str, default: int | None = None, least: int = 1, also: str | None = None
    ) -> int:
        """An integer >= `least` and within reason; `also` is another name of the field, which
        must not disagree."""
        most = MOST.get(key, MOST_OTHERS)
        value, allowed = self._value(key, default), f"an integer >= {least}"
        if also is not None:
            other = self.config.get(also)
            if other is not None and self.config.get(key) not in (None, other):
                self._refuse(key, f"{also}={other!r}, another name of the field")
            value = other if self.config.get(key) is None and other is not None else value
            allowed = f"{allowed}, nor is {also}={other!r}"
        if type(value) is not int or value < least:
            self._refuse(key, allowed)
            return least
        if value > most:
            self._refuse(key, f"at most {most}")
            return least
        return value

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

    def fixed(self, key: str, *allowed: Any) -> None:
        """A field that this family has no part for: absent, or one of these values."""
        if self._value(key, allowed[0]) not in allowed:
            self._refuse(key, f"supported, only {' or '.join(map(repr, allowed))}")

    def layer_list(self, key: str, layers: int) -> frozenset[int]:
        """Numbers of some of `layers` layers; none where the field is absent."""
        value = self._value(key, [])
        numbers = isinstance(value, list) and all(
            type(one) is int and 0 <= one < layers for one in value
        )
        if numbers:
            return frozenset(value)
        self._refuse(key, f"a list of layers from 0 to {layers - 1}")
        return frozenset()

    def require(self, holds: bool, problem: str) -> None:
        """Note `problem` unless it holds."""
        if not holds:
            self.problems.append(problem)

    def check(self) -> None:
        """Raise CheckpointError with all problems, if there are any."""
        if self.problems:
            raise CheckpointError("; ".join(dict.fromkeys(self.problems)))

    def _value(self, key: str, default: Any) -> Any:
        value = self.config.get(key)
        return default if value is None else value

    def _refuse(self, key: str, allowed: str) -> None:
        self.problems.append(f"{key}={self.config.get(key)!r} is not {allowed}")


def number_in(stated: Mapping[str, Any], key: str, default: float | None = None) -> float:
    """A number that may be absent or null where there is a default; ValueError otherwise."""
    value = stated.get(key)
    value = default if value is None else value
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{key}={value!r} is not a number")
    return float(value)
