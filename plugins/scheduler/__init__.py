"""Built-in components: the four scheduler policies."""

from dataclasses import dataclass

from interlock.core.component import Component
from interlock.core.errors import ConfigError
from interlock.core.options import option


@dataclass(frozen=True)
class ArrivalConfig:
    """First come, first served."""

    name: str = "arrival"


@dataclass(frozen=True)
class PriorityConfig:
    """Highest priority first, then first come."""

    name: str = "priority"


@dataclass(frozen=True)
class WhenItFitsConfig:
    """Start a request as soon as its tokens so far fit."""

    name: str = "when_it_fits"
    reserve_share: float = option(
        0.0, "share of all pages kept free for the growth of running requests, 0 to 1"
    )

    def __post_init__(self) -> None:
        if not 0 <= self.reserve_share <= 1:
            raise ConfigError(f"reserve_share={self.reserve_share} is not a number from 0 to 1")


@dataclass(frozen=True)
class PrefillFirstConfig:
    """Whole prompts before decodes: a short time to the first token, uneven gaps after it."""

    name: str = "prefill_first"
    max_prefill_steps: int = option(
        4, "consecutive steps that prompts may take before waiting decodes get their token, >= 1"
    )

    def __post_init__(self) -> None:
        if self.max_prefill_steps < 1:
            raise ConfigError(
                f"max_prefill_steps={self.max_prefill_steps} is not a whole number >= 1"
            )


@dataclass(frozen=True)
class DecodeFirstConfig:
    """Decodes before chunks of prompts: even gaps between tokens, a later first token."""

    name: str = "decode_first"
    min_prefill_share: float = option(
        0.1, "share of the budget that waiting prompts get at least, above 0 and below 1"
    )

    def __post_init__(self) -> None:
        if not 0 < self.min_prefill_share < 1:
            raise ConfigError(
                f"min_prefill_share={self.min_prefill_share} is not a number above 0 and below 1"
            )


@dataclass(frozen=True)
class LatestConfig:
    """The request admitted last gives its pages back."""

    name: str = "latest"


@dataclass(frozen=True)
class LowestPriorityConfig:
    """The least important request gives its pages back; of equals the one admitted last."""

    name: str = "lowest_priority"


def components() -> list[Component]:
    """Every built-in choice of order, admission, chunking and victim."""
    here = "interlock.plugins.scheduler"
    return [
        Component(
            "scheduler/order", "arrival", ArrivalConfig, f"{here}.order:build_arrival",
            "first come, first served",
        ),
        Component(
            "scheduler/order", "priority", PriorityConfig, f"{here}.order:build_priority",
            "highest priority first",
        ),
        Component(
            "scheduler/admission", "when_it_fits", WhenItFitsConfig, f"{here}.admission:build",
            "as soon as the request's tokens so far fit",
        ),
        Component(
            "scheduler/chunking", "prefill_first", PrefillFirstConfig,
            f"{here}.chunking:build_prefill_first", "whole prompts before decodes",
        ),
        Component(
            "scheduler/chunking", "decode_first", DecodeFirstConfig,
            f"{here}.chunking:build_decode_first", "decodes, then chunks of prompts",
        ),
        Component(
            "scheduler/victim", "latest", LatestConfig, f"{here}.victim:build_latest",
            "the request admitted last",
        ),
        Component(
            "scheduler/victim", "lowest_priority", LowestPriorityConfig,
            f"{here}.victim:build_lowest_priority", "the least important request",
        ),
    ]  # fmt: skip
