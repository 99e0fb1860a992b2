"""Registries with parallel=threads: a split engine whose ranks are threads of the test."""

import dataclasses
from typing import Any

from interlock.core.component import Component
from interlock.core.registry import Registry, load_registry
from interlock.core.testing.thread_ranks import ThreadStrategy


@dataclasses.dataclass(frozen=True)
class Threads:
    """Their number is in the component's name."""

    name: str = "threads"


def with_threads(registry: Registry | None = None) -> Registry:
    """The registry with parallel=threads2 and threads4, whose ranks look into it as well."""
    found = dataclasses.replace(registry or load_registry())
    found.components, found.origins = dict(found.components), dict(found.origins)
    for size in (2, 4):

        def build(_config: Any, _context: Any, size: int = size) -> ThreadStrategy:
            return ThreadStrategy(size, found)

        key = ("parallel", f"threads{size}")
        found.components[key] = Component(*key, Threads, build, "a test's own")
        found.origins[key] = found.origins["parallel", "none"]
    return found
