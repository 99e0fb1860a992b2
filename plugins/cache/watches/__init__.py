"""Who follows the cache, and what is told of it."""

from dataclasses import dataclass

from interlock.core.component import Component
from interlock.core.options import option


@dataclass(frozen=True)
class NoEventsConfig:
    """Nothing is told of the cache."""

    name: str = "none"


@dataclass(frozen=True)
class JSONLConfig:
    """Events of the cache in a file, a line for the changes of each step."""

    name: str = "jsonl"
    path: str = option("kv_events.jsonl", "the file; a relative one is in the run's folder")


@dataclass(frozen=True)
class MemoryConfig:
    """Events of the cache for Python: `engine.watches["cache/events"].take()`, or `subscribe`."""

    name: str = "memory"


@dataclass(frozen=True)
class NoSnapshotConfig:
    """The cache begins empty, and ends with the process."""

    name: str = "none"


def components() -> list[Component]:
    """Every choice of cache/events and cache/snapshot."""
    here = "interlock.plugins.cache.watches"
    return [
        Component(
            "cache/events", "none", NoEventsConfig, f"{here}.listeners:build_none", "nobody is told"
        ),
        Component(
            "cache/events", "jsonl", JSONLConfig, f"{here}.listeners:build_jsonl",
            "a file with a line for each step",
        ),
        Component(
            "cache/events", "memory", MemoryConfig, f"{here}.listeners:build_memory",
            "kept for Python programs",
        ),
        Component(
            "cache/snapshot", "none", NoSnapshotConfig, f"{here}.listeners:build_none",
            "it begins empty and leaves nothing",
        ),
    ]  # fmt: skip
