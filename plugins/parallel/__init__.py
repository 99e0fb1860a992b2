"""Built-in parallel strategies."""

from dataclasses import dataclass

from interlock.core.component import BuildContext, Component
from interlock.core.parallel import ParallelStrategy


@dataclass(frozen=True)
class NoneConfig:
    """One process on one device."""

    name: str = "none"


class SingleDevice(ParallelStrategy):
    """Nothing is split."""

    @property
    def world_size(self) -> int:
        """Always 1."""
        return 1


def components() -> list[Component]:
    """The parallel strategies."""
    return [
        Component(
            seam="parallel",
            name="none",
            config=NoneConfig,
            build=_single_device,
            summary="one process on one device",
        )
    ]


def _single_device(_config: NoneConfig, _context: BuildContext) -> SingleDevice:
    return SingleDevice()
