"""Eviction policies: which cached pages go first when pages run out."""

from dataclasses import dataclass
from typing import Literal

from interlock.core.component import Component
from interlock.core.options import option


@dataclass(frozen=True)
class LRUConfig:
    """The run unused for the longest time goes first."""

    name: str = "lru"


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


def components() -> list[Component]:
    """Every built-in choice of cache/eviction."""
    seam, here = "cache/eviction", "interlock.plugins.cache.eviction"
    return [
        Component(seam, "lru", LRUConfig, f"{here}.lru:build", "least recently used first"),
        Component(seam, "fifo", FIFOConfig, f"{here}.fifo:build", "oldest first"),
        Component(seam, "lfu", LFUConfig, f"{here}.lfu:build", "least often used first"),
        Component(
            seam, "length_aware", LengthAwareConfig, f"{here}.length_aware:build",
            "least often used first, of those the latest in its prompt (Mooncake)",
        ),
    ]  # fmt: skip
