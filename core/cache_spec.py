"""What a model keeps per token: planes, cache groups and their lifetimes, and the page tables.

A group is a set of layers whose rows are stored alike. Groups with the same lifetime are addressed
by one page table: a page id then stands for one page of rows in every plane of every such group,
so a drafter's rows share the target's pages and are indexed with them.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from math import prod


@dataclass(frozen=True)
class Plane:
    """One stored tensor per layer: [pages, page_size, *shape].

    `dtype` is a torch dtype name; None takes the engine's dtype. `shard_axis` is the axis of
    `shape` that tensor parallelism may split, None if it must be replicated.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str | None = None
    shard_axis: int | None = None

    def bytes(self, item_bytes: int) -> int:
        """Of one token's row in one layer; `item_bytes` an element where there is no dtype."""
        from interlock.core.planes import torch_dtype  # imports torch, which describing does not

        return prod(self.shape) * (torch_dtype(self.dtype).itemsize if self.dtype else item_bytes)


@dataclass(frozen=True)
class Full:
    """Rows live as long as the request."""


@dataclass(frozen=True)
class Window:
    """A query at position p reads keys at positions p - tokens + 1 .. p; older rows are freed."""

    tokens: int


Lifetime = Full | Window


@dataclass(frozen=True)
class CacheGroup:
    """Layers whose rows have the same planes and lifetime.

    `layers` are global layer numbers: 0 .. num_layers - 1 for the target, higher for a drafter.
    """

    layers: tuple[int, ...]
    planes: tuple[Plane, ...]
    lifetime: Lifetime = Full()


@dataclass(frozen=True)
class CacheLayout:
    """All groups of an engine, and the page table that addresses each.

    Table 0 always has lifetime `Full`: the prefix index speaks in its pages. A model with windows
    only gets a table 0 without planes, which costs page ids but no memory.
    """

    groups: tuple[CacheGroup, ...]
    lifetimes: tuple[Lifetime, ...]

    @staticmethod
    def of(groups: Iterable[CacheGroup]) -> "CacheLayout":
        """The layout that serves `groups`."""
        kept = tuple(groups)
        windows = sorted({g.lifetime.tokens for g in kept if isinstance(g.lifetime, Window)})
        return CacheLayout(kept, (Full(), *(Window(w) for w in windows)))

    def table_of(self, layer: int) -> int:
        """Index of the page table that addresses this layer's rows."""
        for group in self.groups:
            if layer in group.layers:
                return self.lifetimes.index(group.lifetime)
        raise KeyError(f"layer {layer} has no cache group")

    def bytes_per_token(self, item_bytes: int) -> int:
        """Cache bytes of one token over all groups; `item_bytes` an element without a dtype."""
        return sum(len(g.layers) * p.bytes(item_bytes) for g in self.groups for p in g.planes)
