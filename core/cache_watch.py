"""The seams cache/events and cache/snapshot: who is told what the prefix cache holds.

An engine tells its watches only what changes: without one, nothing is asked of any page.
"""

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

from interlock.core.batch import PageId, Pages
from interlock.core.prefix_index import Inserted, PrefixKey
from interlock.core.transfers import Transfer

if TYPE_CHECKING:
    from interlock.core.engine import Engine


class CacheWatch(ABC):
    """Follows one engine's cache from before its first request until it is closed.

    It changes nothing of the cache while requests are served. Pages are those of table 0, good
    for the time of the call.
    """

    @abstractmethod
    def attach(self, engine: "Engine") -> None:
        """The engine is built and has served nothing: join `engine.core.cache.runs.watches`.

        ConfigError for what cannot be done as configured.
        """

    def stored(self, key: PrefixKey, after: PageId | None, inserted: Inserted) -> None:
        """These rows, after an indexed page, are indexed: the last `inserted.kept` pages newly."""

    def used(self, pages: Pages) -> None:
        """A request starts on these indexed pages, a whole prefix."""

    def removed(self, pages: Pages, expired: bool) -> None:
        """These pages, which follow each other, left the index: for room, or their time is over."""

    def copied(self, transfer: Transfer) -> None:
        """A copy to or from tiers ended. What it loaded is indexed next, by one `stored`."""

    def facts(self) -> dict[str, Any]:
        """What it did, as plain values, for the activity report."""
        return {}

    def close(self) -> None:
        """The engine serves no more; pages, index and executor are still there."""
