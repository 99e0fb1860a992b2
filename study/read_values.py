"""Values of a study file's keys, each of its kind; what is not is a problem with the key's name."""

import math
import re
from collections.abc import Callable, Mapping
from typing import Any

NAME = re.compile(r"\w[\w .+-]{0,99}")
Tree = Mapping[str, Any]


def text(tree: Tree, key: str, default: str, problems: list[str]) -> str:
    """One text."""
    value = tree.get(key, default)
    if isinstance(value, str):
        return value
    kind = "list" if isinstance(value, list) else "mapping"
    problems.append(f"{key} is one text, not a {kind}")
    return default


def name(tree: Tree, default: str, problems: list[str]) -> str:
    """The study's name, which is a folder's as well."""
    found = text(tree, "name", default, problems)
    if NAME.fullmatch(found) is None:
        problems.append(
            f"name={found[:60]!r} is not 1 to 100 letters, digits, spaces and ._+- that begin with "
            "a letter or digit; a folder has this name (title takes any text)"
        )
    return found


def texts(tree: Tree, key: str, problems: list[str]) -> tuple[str, ...]:
    """Overrides, or one."""
    value = tree.get(key) or []
    items = [value] if isinstance(value, str) else value
    if isinstance(items, list) and all(isinstance(item, str) for item in items):
        return tuple(items)
    problems.append(f"{key} is a list of overrides, such as [cache=radix, seed=1]")
    return ()


def whole(tree: Tree, key: str, default: int, least: int, problems: list[str]) -> int:
    """A whole number from `least` on."""
    value = tree.get(key, default)
    try:
        number = int(value)
    except (TypeError, ValueError):
        number = least - 1
    if not least <= number <= 2**31:
        problems.append(f"{key}={value!r} is not a whole number from {least} on, up to 2**31")
        return default
    return number


def number(
    tree: Tree, key: str, fits: Callable[[float], bool], words: str, problems: list[str]
) -> float | None:
    """None where the key is not there, or a problem was added."""
    if key not in tree:
        return None
    value = tree[key]
    try:
        found = float(value)
    except (TypeError, ValueError):
        found = math.nan
    if fits(found):
        return found
    problems.append(f"{key}={value!r} is not {words}")
    return None
