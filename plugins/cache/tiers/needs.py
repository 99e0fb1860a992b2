"""What stores of pages need of the other choices of a composition."""

from collections.abc import Iterable
from typing import Any

from interlock.core.capabilities import (
    Composition,
    HoldsWholePages,
    KeepsPages,
    MovesPages,
    PricesMoves,
    Requirement,
    needs,
)
from interlock.core.model import ModelDescription

TIERS = ("cache/tiers", "cache/tiers/below")
"""The seams of stores, the nearest first."""


def _whole(composition: Composition) -> str | None:
    if composition.has(HoldsWholePages()):
        return None
    chosen = composition.chosen["parallel"][0]
    return f"pages are stored whole, and with parallel={chosen} each rank has a part of every page"


KEPT = needs(KeepsPages(), "what an index keeps is stored, and this one keeps nothing")


def of_bytes(_config: Any, _model: ModelDescription | None) -> Iterable[Requirement]:
    """Of a store that keeps bytes."""
    return (KEPT, _whole, needs(MovesPages(), "bytes are stored, and this executor has none"))


def of_prices(_config: Any, _model: ModelDescription | None) -> Iterable[Requirement]:
    """Of a store that only has prices."""
    reason = "no bytes are stored, and this executor's pages have some"
    return (KEPT, _whole, needs(PricesMoves(), reason))


def of_nothing(_config: Any, _model: ModelDescription | None) -> Iterable[Requirement]:
    """Of no store: nothing can be behind it."""

    def nothing_below(composition: Composition) -> str | None:
        near, below = (composition.chosen[seam][0] for seam in TIERS)
        if below == "none" or near != "none":
            return None
        return f"cache/tiers/below={below} is behind another store, and cache/tiers=none is none"

    return (nothing_below,)
