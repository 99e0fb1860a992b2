"""Eviction policies: which cached pages go first when pages run out."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

from interlock.core.capabilities import Composition, KeepsPages, KnowsContent, Requirement
from interlock.core.component import Component
from interlock.core.options import option


@dataclass(frozen=True)
class LRUConfig:
    """The run unused for the longest time goes first."""

    name: str = "lru"
    record: str = option("", "write every use to this file, for cache/eviction=belady")


@dataclass(frozen=True)
class FIFOConfig:
    """The run indexed first goes first."""

    name: str = "fifo"


@dataclass(frozen=True)
class LFUConfig:
    """The run used least often since it was indexed goes first."""

    name: str = "lfu"
    aging: Literal["none", "dynamic"] = option(
        "none",
        "none: counts alone; dynamic: each use also counts as many as the last evicted run had "
        "(LFU-DA), so that old favourites do not stay for ever",
    )


@dataclass(frozen=True)
class LengthAwareConfig:
    """As lfu, but of equally often used runs the one deepest in its prompt goes first."""

    name: str = "length_aware"


@dataclass(frozen=True)
class S3FIFOConfig:
    """A small and a main FIFO queue: what is used only once never reaches the main one."""

    name: str = "s3fifo"
    small_share: float = option(0.1, "share of the pool that the small queue may hold, 0 to 1")

    def __post_init__(self) -> None:
        if not 0 < self.small_share < 1:
            raise ValueError(f"small_share={self.small_share} is not a number between 0 and 1")


@dataclass(frozen=True)
class LRUKConfig:
    """The run whose Kth last use is longest ago goes first."""

    name: str = "lruk"
    k: int = option(2, "which of the last uses is compared")
    correlated_s: float = option(0.0, "uses closer together than this count as one, seconds")
    history_pages: int | None = option(
        None, "evicted pages whose uses are remembered; null: as many as the pool has"
    )

    def __post_init__(self) -> None:
        if self.k < 1:
            raise ValueError(f"k={self.k} is not at least 1")
        if not 0 <= self.correlated_s < float("inf"):
            raise ValueError(f"correlated_s={self.correlated_s} is not a number of seconds >= 0")
        if self.history_pages is not None and self.history_pages < 0:
            raise ValueError(f"history_pages={self.history_pages} is not at least 0, or null")


@dataclass(frozen=True)
class ARCConfig:
    """Runs seen once and runs seen again share the pool by what was evicted too early."""

    name: str = "arc"


@dataclass(frozen=True)
class CostAwareConfig:
    """The run with the least uses times cost of computing it again goes first."""

    name: str = "cost_aware"
    attention_tokens: float | None = option(
        None,
        "context in tokens at which attention costs as much as the rest of a layer; null: "
        "from the model's sizes",
    )

    def __post_init__(self) -> None:
        if self.attention_tokens is not None and not self.attention_tokens > 0:
            raise ValueError(f"attention_tokens={self.attention_tokens} is not above 0, or null")


@dataclass(frozen=True)
class TTLConfig:
    """What was not used for a time goes though no page is needed; before that, as lru."""

    name: str = "ttl"
    ttl_s: float = option(300.0, "how long an unused run is kept, seconds")

    def __post_init__(self) -> None:
        if not 0 < self.ttl_s < float("inf"):
            raise ValueError(f"ttl_s={self.ttl_s} is not a finite number of seconds above 0")


@dataclass(frozen=True)
class PriorityConfig:
    """What requests say matters least goes first (`retention` of a request)."""

    name: str = "priority"


@dataclass(frozen=True)
class BeladyConfig:
    """The offline optimum on a recorded run: a bound, not a policy to serve with."""

    name: str = "belady"
    path: str = option("", "what cache/eviction=lru cache.eviction.record=FILE wrote")


def content_known(config: Any, _model: Any) -> Iterable[Requirement]:
    """That content which was evicted is known when it comes back, where any is kept."""
    why = (
        f"cache/eviction={config.name} remembers what it evicted, and the chosen cache/index keeps "
        "no keys of pages by which that is known when it comes back (it provides no KnowsContent)"
    )

    def requirement(composition: Composition) -> str | None:
        known = composition.has(KnowsContent()) or not composition.has(KeepsPages())
        return None if known else why

    return (requirement,)


def _recording_requirements(config: LRUConfig, model: Any) -> Iterable[Requirement]:
    return content_known(config, model) if config.record else ()


def belady_requirements(config: BeladyConfig, model: Any) -> Iterable[Requirement]:
    """That a recorded run is named."""
    yield from content_known(config, model)
    why = (
        "cache/eviction=belady needs cache.eviction.path: what a run of the same workload with "
        "cache/eviction=lru cache.eviction.record=FILE wrote"
    )
    yield lambda _composition: None if config.path else why


def components() -> list[Component]:
    """Every built-in choice of cache/eviction."""
    seam, here = "cache/eviction", "interlock.plugins.cache.eviction"
    return [
        Component(
            seam, "lru", LRUConfig, f"{here}.lru:build", "least recently used first",
            requires=_recording_requirements,
        ),
        Component(seam, "fifo", FIFOConfig, f"{here}.fifo:build", "oldest first"),
        Component(seam, "lfu", LFUConfig, f"{here}.lfu:build", "least often used first"),
        Component(
            seam, "length_aware", LengthAwareConfig, f"{here}.length_aware:build",
            "least often used first, of those the latest in its prompt (Mooncake)",
        ),
        Component(
            seam, "s3fifo", S3FIFOConfig, f"{here}.s3fifo:build",
            "oldest first, in a small queue for what is new and one for what was used again",
            requires=content_known,
        ),
        Component(
            seam, "lruk", LRUKConfig, f"{here}.lruk:build", "by the last use but one (or more)",
            requires=content_known,
        ),
        Component(
            seam, "arc", ARCConfig, f"{here}.arc:build",
            "recency and frequency, balanced by what came back too late", requires=content_known,
        ),
        Component(
            seam, "cost_aware", CostAwareConfig, f"{here}.cost_aware:build",
            "least uses times cost of computing it again first",
        ),
        Component(
            seam, "ttl", TTLConfig, f"{here}.ttl:build",
            "what was not used for a time, though no page is needed; else as lru",
        ),
        Component(
            seam, "priority", PriorityConfig, f"{here}.priority:build",
            "by the retention that requests ask for ranges of their tokens, else as lru",
        ),
        Component(
            seam, "belady", BeladyConfig, f"{here}.belady:build",
            "used again latest first, by a recorded run: the offline optimum",
            requires=belady_requirements,
        ),
    ]  # fmt: skip
