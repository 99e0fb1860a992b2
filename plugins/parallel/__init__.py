"""Built-in parallel strategies."""

from collections.abc import Iterable
from dataclasses import dataclass

from interlock.core.capabilities import (
    Capability,
    HoldsWholePages,
    Requirement,
    SplitsSums,
    UsesDevices,
)
from interlock.core.component import Component
from interlock.core.model import ModelDescription
from interlock.core.options import option
from interlock.plugins.parallel import splits

MOST_RANKS = 1024


@dataclass(frozen=True)
class NoneConfig:
    """One process on one device."""

    name: str = "none"


@dataclass(frozen=True)
class TensorConfig:
    """Every layer split over ranks, one process and device each.

    Each rank has a part of the heads, of the MLPs' inner size, of the experts and of the
    vocabulary, and joins what it computes with the others (Megatron-LM, arXiv 1909.08053, section
    3). Ranks start with the engine; under torchrun they are the processes that it started.
    """

    name: str = "tensor"
    size: int = option(
        2, "ranks that share the model; heads, MLP sizes and experts must be multiples of it"
    )

    def __post_init__(self) -> None:
        if not 1 <= self.size <= MOST_RANKS:
            raise ValueError(f"size={self.size} is not from 1 to {MOST_RANKS}")


def components() -> list[Component]:
    """The parallel strategies."""
    here = "interlock.plugins.parallel"
    return [
        Component(
            seam="parallel",
            name="none",
            config=NoneConfig,
            build=f"{here}.alone:build",
            summary="one process on one device",
            provides=_alone_provides,
        ),
        Component(
            seam="parallel",
            name="tensor",
            config=TensorConfig,
            build=f"{here}.tensor:build",
            summary="heads, MLPs, experts and vocabulary split over ranks, a process each",
            provides=_tensor_provides,
            requires=_tensor_requires,
        ),
    ]


def _tensor_provides(config: TensorConfig, _model: ModelDescription | None) -> Iterable[Capability]:
    return (UsesDevices(config.size), SplitsSums() if config.size > 1 else HoldsWholePages())


def _alone_provides(_config: NoneConfig, _model: ModelDescription | None) -> Iterable[Capability]:
    return (HoldsWholePages(),)


def _tensor_requires(config: TensorConfig, model: ModelDescription | None) -> Iterable[Requirement]:
    return splits.requirements(config.size, model)
