"""The parallel seam: how a model's work is split over cooperating processes (ranks)."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from interlock.core.adapters import NO_ADAPTERS, AdapterSet
from interlock.core.errors import ContractError

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
        """Rank 0's value, on every rank; what the others pass is ignored. It can be pickled."""

    def place(self, device: "torch.device") -> "torch.device":
        """This rank's own device, where the run's is `device`."""
        return device

    def require_same(self, what: str, mine: T, first: T) -> None:
        """Raise ContractError unless this rank has what rank 0 has."""
        if mine != first:
            raise ContractError(f"rank {self.rank} has {what} {mine!r}, and rank 0 has {first!r}")


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
    the decoder confirms it by an attribute of this name. So it is with `weights` other than "auto",
    which ask for quantised layers; the decoder's `weight_errors` then say what that changed.
    """

    dtype: "torch.dtype"
    device: "torch.device"
    ranks: Ranks = ALONE
    adapters: AdapterSet = NO_ADAPTERS
    numerics: str = "fast"
    weights: str = "auto"


class ParallelStrategy(ABC):
    """Says how a model is split, and starts the ranks that share it or joins them.

    Every rank builds its part with what `start` gives it. Rank 0 has the engine and decides tokens;
    the others run each plan it hands out (`interlock.core.rank.follow`) until it hands out none.
    """

    @property
    @abstractmethod
    def world_size(self) -> int:
        """Number of cooperating devices."""

    @abstractmethod
    def start(self, device: "torch.device") -> Ranks:
        """This process among its ranks, the others started; called once, before any weight is read.

        Whatever then stops another rank (it raises, is killed, stops answering) makes the calls
        of `Ranks` raise RankError, which names it and why, within 10 seconds. Long steps do not.
        """

    @abstractmethod
    def close(self, finished: bool = True) -> None:
        """End the ranks that `start` started: none of their processes is left. May be repeated.

        They leave by themselves once rank 0 handed out its last plan; not `finished`: something
        failed, and nothing may be expected of them.
        """

    def facts(self) -> dict[str, Any]:
        """What a run's manifest says about the ranks, as plain values."""
        return {"world_size": self.world_size}
