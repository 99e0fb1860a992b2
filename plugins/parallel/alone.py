"""No split: one process on one device."""

from typing import TYPE_CHECKING

from interlock.core.component import BuildContext
from interlock.core.parallel import ALONE, ParallelStrategy, Ranks
from interlock.plugins.parallel import NoneConfig

if TYPE_CHECKING:
    import torch


class SingleDevice(ParallelStrategy):
    """Nothing is split."""

    @property
    def world_size(self) -> int:
        """Always 1."""
        return 1

    def start(self, device: "torch.device") -> Ranks:
        """This process."""
        return ALONE

    def close(self, finished: bool = True) -> None:
        """Nothing was started."""


def build(_config: NoneConfig, _context: BuildContext) -> SingleDevice:
    """See Component."""
    return SingleDevice()
