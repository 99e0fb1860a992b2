"""The load seam: whether a waiting request's pages come from a tier or are computed again."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from interlock.core.transfers import Moved


@dataclass(frozen=True)
class LoadOffer:
    """A prompt of which tiers have the pages after what is on the device.

    `tiers[i]` has page i of those. Without them `pending_tokens` are to be computed, in steps of
    at most `budget_tokens`; with the first n of them, n * page_size tokens less. `backlog_tokens`
    of other prompts come first, `queued` loads of pages of each tier too; `behind` requests wait
    that arrived later. The request has waited `waited_s`, and should have its first token
    `limit_s` after its arrival (None: no limit).
    """

    tiers: Sequence[int]
    page_size: int
    payload_bytes: int
    pending_tokens: int
    budget_tokens: int
    backlog_tokens: int
    queued: Sequence[int]
    behind: int
    waited_s: float
    limit_s: float | None
    timeout_s: float
    """A load that takes longer is given up."""


class LoadPolicy(ABC):
    """Decides once for each waiting request with pages in a tier."""

    @abstractmethod
    def choose(self, offer: LoadOffer) -> int:
        """How many of the offered pages to load, from the first on: 0 to all."""

    def loaded(self, wanted: Sequence[int], moved: Sequence[Moved], seconds: float) -> None:
        """A load is over (or was given up) `seconds` after it was chosen.

        `wanted` are the tiers of its pages; `moved` says what each tier gave and took.
        """

    def saved(self, moved: Sequence[Moved]) -> None:
        """A save is over: what each tier took. A hint of what loads from it may take."""

    def stepped(self, tokens: int, seconds: float) -> None:
        """A step of so many tokens took so long."""

    def facts(self) -> Mapping[str, float]:
        """Counts of what it decided, for the activity report."""
        return {}
