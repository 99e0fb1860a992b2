"""An Interlock plugin: the eviction policy `lrfu`."""

from dataclasses import dataclass

from interlock.core.component import Component
from interlock.core.hooks import hookimpl
from interlock.core.options import option

INTERLOCK_CONTRACT = 1
"""The plugin contract this package was written for; Interlock refuses another one."""


@dataclass(frozen=True)
class LRFUConfig:
    """Runs used least often go first; uses fade with time."""

    name: str = "lrfu"
    half_life_s: float = option(
        600.0, "a use counts half after this many seconds (.inf: uses never fade, plain LFU)"
    )
    min_uses: int = option(2, "runs used fewer times than this go before all others")

    def __post_init__(self) -> None:
        if not self.half_life_s > 0:
            raise ValueError(f"half_life_s={self.half_life_s!r} is not a number of seconds above 0")
        if self.min_uses < 0:
            raise ValueError(f"min_uses={self.min_uses!r} is not a whole number >= 0")


@hookimpl
def interlock_components() -> list[Component]:
    """What this package adds: one choice of one seam."""
    return [
        Component(
            seam="cache/eviction",
            name="lrfu",
            config=LRFUConfig,
            build="interlock_example_lrfu.policy:build",
            summary="least frequently used first, uses fade with time",
        )
    ]
