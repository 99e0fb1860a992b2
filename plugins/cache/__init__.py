"""Built-in components: cache (allocators, prefix indexes, eviction policies)."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

from interlock.core.capabilities import (
    Capability,
    Composition,
    KeepsPages,
    KnowsContent,
    Requirement,
    SharesPages,
    needs,
)
from interlock.core.component import Component
from interlock.core.model import ModelDescription
from interlock.core.options import option
from interlock.plugins.cache import tiering, watches
from interlock.plugins.cache.eviction import components as eviction_policies


@dataclass(frozen=True)
class PagedConfig:
    """Pages one at a time, wherever they are free."""

    name: str = "paged"


@dataclass(frozen=True)
class ContiguousConfig:
    """One contiguous run of pages per request, reserved to its maximum length."""

    name: str = "contiguous"


@dataclass(frozen=True)
class BuddyConfig:
    """Power-of-two blocks of pages that split and merge, so that a request's pages lie together."""

    name: str = "buddy"
    run_pages: int = option(
        8, "pages that a request's next run should find free behind its first, 1 to 65536"
    )

    def __post_init__(self) -> None:
        if not 1 <= self.run_pages <= 65536:
            raise ValueError(f"run_pages={self.run_pages} is not a whole number from 1 to 65536")


_PARTS = (
    "a hit may end inside a page: its first rows are copied to the request's own page, instead of "
    "computed; looking costs time for each run that follows the hit"
)


@dataclass(frozen=True)
class BlockHashConfig:
    """A table from chained page keys to pages."""

    name: str = "block_hash"
    hash: Literal["fast", "blake2b", "sha256"] = option(
        "fast",
        "keys: fast (64 bits; rows are kept and compared on every hit, so that a collision changes "
        "no output), blake2b or sha256 (32-byte digests, trusted without a comparison)",
    )
    partial_pages: bool = option(False, _PARTS + "; rows are then kept with every hash")


@dataclass(frozen=True)
class RadixConfig:
    """A radix tree over page rows."""

    name: str = "radix"
    partial_pages: bool = option(False, _PARTS)


@dataclass(frozen=True)
class NoIndexConfig:
    """No page outlives its request."""

    name: str = "none"


def _shares_pages(_config: Any, _model: ModelDescription | None) -> Iterable[Capability]:
    return (SharesPages(),)


def _keeps_pages(_config: Any, _model: ModelDescription | None) -> Iterable[Capability]:
    return KeepsPages(), KnowsContent()


def _shared_pages_needed(config: Any, _model: ModelDescription | None) -> Iterable[Requirement]:
    return (
        needs(
            SharesPages(),
            f"cache/index={config.name} keeps pages for later requests, which needs an allocator "
            "whose pages can be shared",
        ),
    )


def _index_needs(config: Any, model: ModelDescription | None) -> Iterable[Requirement]:
    yield from _shared_pages_needed(config, model)
    if not config.partial_pages:
        return
    if model and any(spec.window for spec in model.attention):
        reason = (
            f"cache/index={config.name} with cache.index.partial_pages=true copies rows of one "
            f"table, and {model.name} keeps window pages in others; set "
            "cache.index.partial_pages=false"
        )
        yield lambda _composition: reason
    yield _no_tier


def _no_tier(composition: Composition) -> str | None:
    """A page that is copied from is not pinned, and a transfer may write to it at any time."""
    tier, _ = composition.chosen.get("cache/tiers", ("none", None))
    if tier == "none":
        return None
    return (
        f"cache/tiers={tier} moves pages while steps run, and cache.index.partial_pages=true "
        "copies from pages that may be given away; set cache.index.partial_pages=false"
    )


def components() -> list[Component]:
    """Every built-in choice of cache/allocator, cache/index and cache/eviction."""
    here = "interlock.plugins.cache"
    return [
        Component(
            "cache/allocator", "paged", PagedConfig, f"{here}.paged:build",
            "any free page, last freed first", provides=_shares_pages,
        ),
        Component(
            "cache/allocator", "contiguous", ContiguousConfig, f"{here}.contiguous:build",
            "one run per request, reserved to its maximum length",
        ),
        Component(
            "cache/allocator", "buddy", BuddyConfig, f"{here}.buddy:build",
            "runs of pages out of power-of-two blocks", provides=_shares_pages,
        ),
        Component(
            "cache/index", "block_hash", BlockHashConfig, f"{here}.block_hash:build",
            "chained page hashes", provides=_keeps_pages, requires=_index_needs,
        ),
        Component(
            "cache/index", "radix", RadixConfig, f"{here}.radix:build",
            "a radix tree over pages", provides=_keeps_pages, requires=_index_needs,
        ),
        Component(
            "cache/index", "none", NoIndexConfig, f"{here}.none:build",
            "nothing is kept for later requests",
        ),
        *eviction_policies(),
        *tiering.components(),
        *watches.components(),
    ]  # fmt: skip
