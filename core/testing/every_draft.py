"""Every way in which the drafters of a registry can draft, found from their options.

A drafter that is added is found as well; so are its `proposal` and `tree`, which decide what kind
of draft it makes. One whose options have other names for that must be added by hand.
"""

import dataclasses
from collections.abc import Iterable, Iterator
from itertools import product
from typing import Any

from interlock.core.errors import ConfigError
from interlock.core.registry import Registry
from interlock.core.settings import AUTO

Paths = tuple[tuple[int, ...], ...]
PATHS: Paths = ((0,), (1,), (2,), (0, 0), (0, 1), (1, 0), (0, 0, 0))
"""A tree of paths of child ranks."""


def every_draft(
    registry: Registry, num_drafts: int | None = None, paths: Paths = PATHS
) -> dict[str, Any]:
    """Options by a name such as "eagle3 sampled" or "suffix tree", `auto` and `none` left out.

    With `num_drafts`, as many candidates where that can be told, other than in a tree of `paths`.
    """
    found: dict[str, Any] = {}
    for name in registry.names("spec"):
        if name in (AUTO, "none"):
            continue
        config = registry.components["spec", name].config
        for label, options in _ways(config, paths):
            tree = options.get("tree") == paths
            counts = (len(paths),) if tree else (num_drafts, len(paths))
            made = _made(config, {"name": name, **options}, counts)
            if made is not None:
                found[" ".join([name, *label])] = made
    return found


def _ways(config: type, paths: Paths) -> Iterator[tuple[list[str], dict[str, Any]]]:
    """Labels and options: the defaults, and every other choice of a proposal and of a tree."""
    choices = {"proposal": ("greedy", "sampled"), "tree": ("auto", "dynamic", "ddtree", paths)}
    defaults = {field.name: field.default for field in dataclasses.fields(config)}
    named = [name for name in choices if name in defaults]
    levels = [
        dict.fromkeys([defaults[n], *((True,) if defaults[n] is False else choices[n])])
        for n in named
    ]
    for values in product(*levels):
        chosen = dict(zip(named, values, strict=True))
        label = [
            "paths" if value == paths else name if value is True else str(value)
            for name, value in chosen.items()
            if value != defaults[name]
        ]
        yield label, chosen


def _made(config: type, options: dict[str, Any], counts: Iterable[int | None]) -> Any:
    """The options with the first of these numbers of candidates that they can have; None for a
    number: the default. None where the drafter refuses them with each."""
    counted = any(field.name == "num_drafts" for field in dataclasses.fields(config))
    for count in counts:
        asked = {"num_drafts": count} if counted and count is not None else {}
        try:
            return config(**options, **asked)
        except ConfigError:
            continue
    return None
