"""Copies of pages between the device and its tiers, as the core asks for them.

The core starts transfers and takes them back finished; in between their pages are in transit. How
they run is the executor's: threads beside real steps, or a price in virtual time.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from interlock.core.batch import Pages
from interlock.core.clock import Clock
from interlock.core.tier import Key

NOWHERE = -1
"""Of a key: no tier has it. Of a page: the table has none."""


class Kind(Enum):
    """What a transfer does."""

    FIND = "find"
    LOAD = "load"
    SAVE = "save"


class Moved(NamedTuple):
    """What one tier took for so many payloads of a transfer, one after the other."""

    tier: int
    pages: int
    seconds: float


@dataclass(slots=True, eq=False)
class Transfer:
    """One errand: find keys in the tiers, load their payloads into pages, or save pages under them.

    `pages[t][i]` is the page of key i in table t, NOWHERE where it has none there. What comes of it
    is set when it is finished.
    """

    kind: Kind
    keys: Sequence[Key]
    pages: tuple[Pages, ...]
    until_s: float
    """Not worth starting after this."""
    where: list[int] = field(default_factory=list)
    """The fastest tier that may have key i, up to the first key that none has: what comes of FIND,
    and what a LOAD tries first."""
    done: list[tuple[bool, ...]] = field(default_factory=list)
    """LOAD: of the leading keys that were read, which tables' pages hold rows now. SAVE: for each
    key, (whether some tier has it,)."""
    moved: list[Moved] = field(default_factory=list)
    finished: bool = False


class Transfers(ABC):
    """Runs transfers beside the steps.

    An engine has one. Transfers of a kind start in the order in which they were given; a page is
    written by LOAD and read by SAVE only between `start` and the call of `finished` that gives the
    transfer back, which happens once for each of them.
    """

    payload_bytes: int
    """Of one page of every table."""

    @abstractmethod
    def start(self, transfer: Transfer, now_s: float) -> None:
        """Take a transfer in. Returns at once; a FIND that needs no waiting is finished then."""

    @abstractmethod
    def finished(self, now_s: float) -> list[Transfer]:
        """Those finished by now, each once, in the order in which they finished."""

    @abstractmethod
    def wait(self, clock: Clock, until_s: float) -> None:
        """Return when `finished` would give something, at `until_s`, or before."""

    def close(self, timeout_s: float) -> None:
        """Finish what is under way if it takes no longer than this; release threads and buffers."""
