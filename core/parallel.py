"""The parallel seam: how a model's work is split over cooperating processes (ranks)."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from interlock.core.adapters import NO_ADAPTERS, AdapterSet

if TYPE_CHECKING:
    import torch
    from torch import Tensor

T = TypeVar("T")


class Ranks(ABC):
    """This process among those that share one model, and what joins their results.

    Every rank calls the same methods in the same order with tensors of the same shape.
    """

    rank: int
    size: int

    @abstractmethod
    def sum(self, x: "Tensor") -> "Tensor":
        """The element-wise sum over ranks, with equal bits on each; `x` may be overwritten."""

    @abstractmethod
    def concat(self, x: "Tensor") -> "Tensor":
        """The ranks' tensors side by side along the last axis, in rank order."""

    @abstractmethod
    def from_first(self, value: T) -> T:
        """Rank 0's value, on every rank; what the others pass is ignored."""


class Alone(Ranks):
    """One process that has everything."""

    rank = 0
    size = 1

    def sum(self, x: "Tensor") -> "Tensor":
        """`x` itself."""
        return x

    def concat(self, x: "Tensor") -> "Tensor":
        """`x` itself."""
        return x

    def from_first(self, value: T) -> T:
        """`value` itself."""
        return value


ALONE = Alone()


@dataclass(frozen=True)
class Placement:
    """How a decoder is built: `dtype` of its parameters, device, ranks that share it, adapters.

    `numerics` "batch_invariant" asks for a decoder whose rows' bits depend on their tokens alone;
    the decoder confirms it by an attribute of this name.
    """

    dtype: "torch.dtype"
    device: "torch.device"
    ranks: Ranks = ALONE
    adapters: AdapterSet = NO_ADAPTERS
    numerics: str = "fast"


class ParallelStrategy(ABC):
    """Splits weights and heads and joins results."""

    @property
    @abstractmethod
    def world_size(self) -> int:
        """Number of cooperating devices."""
