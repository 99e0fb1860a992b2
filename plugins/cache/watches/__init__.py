"""Who follows the cache: streams of events, and snapshots that outlive a process."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from interlock.core.capabilities import (
    Composition,
    HoldsWholePages,
    KeepsPages,
    Requirement,
    needs,
)
from interlock.core.component import Component
from interlock.core.model import ModelDescription
from interlock.core.options import option


@dataclass(frozen=True)
class NoEventsConfig:
    """Nothing is told of the cache."""

    name: str = "none"


@dataclass(frozen=True)
class JSONLConfig:
    """Events of the cache in a file, a line for the changes of each step."""

    name: str = "jsonl"
    path: str | None = option(
        None, "the file, from the working directory; null: kv_events.jsonl in the run's folder"
    )


@dataclass(frozen=True)
class MemoryConfig:
    """Events of the cache for Python: `engine.watches["cache/events"].take()`, or `subscribe`."""

    name: str = "memory"


@dataclass(frozen=True)
class NoSnapshotConfig:
    """The cache begins empty, and ends with the process."""

    name: str = "none"


@dataclass(frozen=True)
class DirectoryConfig:
    """A warm cache in a directory: read before the first request, written after the last."""

    name: str = "directory"
    load: str | None = option(
        None, "directory, from the working one, whose snapshot the cache begins with; null: empty"
    )
    save: str | None = option(
        None, "directory, from the working one, that gets the cache's content at the end; null: no"
    )

    def __post_init__(self) -> None:
        if "" in (self.load, self.save):
            raise ValueError("load and save are directories, or null")


def _whole(composition: Composition) -> str | None:
    if composition.has(HoldsWholePages()):
        return None
    chosen = composition.chosen["parallel"][0]
    return (
        f"a snapshot has whole pages, and with parallel={chosen} each rank has a part of every page"
    )


def _of_snapshots(config: Any, _model: ModelDescription | None) -> Iterable[Requirement]:
    yield needs(KeepsPages(), "what an index keeps is saved, and this one keeps nothing")
    yield _whole
    if config.load is None and config.save is None:
        needed = "cache.snapshot.load=DIR, cache.snapshot.save=DIR or both"
        yield lambda _: f"cache/snapshot=directory needs {needed}"


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
        Component(
            "cache/snapshot", "directory", DirectoryConfig, f"{here}.snapshot:build",
            "pages, keys and what eviction knows, in checksummed files", requires=_of_snapshots,
        ),
    ]  # fmt: skip
