"""The choices of stores and load policies, and the options of those that keep no bytes."""

import math
from dataclasses import dataclass

from interlock.core.component import Component
from interlock.core.options import option
from interlock.plugins.cache.tiers import (
    CPUTierConfig,
    DiskTierConfig,
    MooncakeTierConfig,
    RemoteTierConfig,
    needs,
)


@dataclass(frozen=True)
class NoTierConfig:
    """Pages exist on the device alone."""

    name: str = "none"


@dataclass(frozen=True)
class PricedConfig:
    """A store of a simulation: keys without bytes, and copies that take a computed time."""

    name: str = "priced"
    latency_ms: float = option(1.0, "milliseconds of a copy, whatever its size")
    gb_per_s: float = option(10.0, "gigabytes (1e9 bytes) a second beyond that")
    capacity_mib: float | None = option(None, "mebibytes that it holds; null: everything")

    def __post_init__(self) -> None:
        if not 0 <= self.latency_ms <= 1e6:
            raise ValueError(f"latency_ms={self.latency_ms} is not from 0 to 1e6")
        if not 0 < self.gb_per_s < math.inf:
            raise ValueError(f"gb_per_s={self.gb_per_s} is not a finite number above 0")
        if self.capacity_mib is not None and not 0 <= self.capacity_mib < math.inf:
            raise ValueError(f"capacity_mib={self.capacity_mib} is not at least 0, or null")


@dataclass(frozen=True)
class AlwaysConfig:
    """Load every page that some store has."""

    name: str = "always"


@dataclass(frozen=True)
class NeverConfig:
    """Compute everything again: stores are written and never read."""

    name: str = "never"


@dataclass(frozen=True)
class CostConfig:
    """Load as many pages as bring the first token soonest, by what loads and steps took so far."""

    name: str = "cost"


def components() -> list[Component]:
    """Every store for both places, and every choice of cache/load."""
    tiers, load = "interlock.plugins.cache.tiers", "interlock.plugins.cache.load"
    stores = [
        (CPUTierConfig, "memory of the CPU"),
        (DiskTierConfig, "checksummed files of a local folder, which outlive the process"),
        (RemoteTierConfig, "a Redis or Valkey server"),
        (MooncakeTierConfig, "a Mooncake store"),
    ]
    return [
        *(
            Component(
                seam, config().name, config, f"{tiers}.{config().name}:build", summary,
                requires=needs.of_bytes,
            )
            for seam in needs.TIERS
            for config, summary in stores
        ),
        *(
            Component(
                seam, "none", NoTierConfig, f"{load}.simple:no_tier", "no store",
                requires=needs.of_nothing,
            )
            for seam in needs.TIERS
        ),
        *(
            Component(
                seam, "priced", PricedConfig, f"{tiers}.priced:build",
                "keys alone; copies take a computed time (executor=fixed)",
                requires=needs.of_prices,
            )
            for seam in needs.TIERS
        ),
        Component(
            "cache/load", "always", AlwaysConfig, f"{load}.simple:always", "whatever is stored"
        ),
        Component("cache/load", "never", NeverConfig, f"{load}.simple:never", "nothing"),
        Component(
            "cache/load", "cost", CostConfig, f"{load}.cost:build",
            "what is sooner there than computed",
        ),
    ]  # fmt: skip
