"""No split: one process on one device."""

from typing import TYPE_CHECKING

from interlock.core.component import BuildContext
from interlock.core.errors import ConfigError
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


def build(_config: NoneConfig, context: BuildContext) -> SingleDevice:
    """See Component. Raises ConfigError when a launcher started more processes than this one."""
    started = context.environment.get("WORLD_SIZE", "1")
    if started != "1" and "RANK" in context.environment:
        raise ConfigError(
            f"parallel=none: torchrun started {started} processes, and each would serve everything "
            f"alone; write parallel=tensor parallel.size={started}, or start without torchrun"
        )
    return SingleDevice()
