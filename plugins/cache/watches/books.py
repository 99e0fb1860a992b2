"""What an eviction policy knows beside its candidates, for snapshots."""

from collections.abc import Iterable, Mapping
from typing import Any, Protocol, runtime_checkable

from interlock.core.prefix_index import Run


@runtime_checkable
class Books(Protocol):
    """A policy whose bookkeeping can be saved. Optional: others begin anew, with the runs' own
    times, counts and states."""

    def books(self) -> Mapping[str, Any]:
        """Everything but candidates and what runs say themselves, as JSON has it."""

    def open_books(self, books: Mapping[str, Any], runs: Iterable[Run], shift_s: float) -> None:
        """Go on from what `books` gave: runs are indexed, with their states, none is a candidate.

        `shift_s` is added to a time of then to have it on this clock; times and counts of runs have
        it already, their states have not.
        """
