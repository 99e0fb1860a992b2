"""The offline optimum: what is used again latest goes first."""

import json
from collections.abc import Hashable, Iterable
from pathlib import Path
from typing import TextIO
from weakref import finalize

from interlock.core.component import BuildContext
from interlock.core.errors import ConfigError
from interlock.core.eviction import RankedEviction
from interlock.core.prefix_index import Run
from interlock.plugins.cache.eviction import BeladyConfig
from interlock.plugins.cache.eviction.ghosts import key_from, keys_of, plain_key
from interlock.plugins.cache.eviction.lru import LRUEviction

NEVER = float("inf")


class BeladyEviction(RankedEviction):
    """Belady's MIN (IBM Systems Journal 5(2), 1966) on a recorded sequence of references: the run
    whose last page is referenced again latest, or never, goes first; of equals the deepest.

    `references` are keys of pages in the order of their uses in the recorded run. Where every page
    is referenced in that order and any may go, no policy that keeps what it computes has more hits.
    In an engine it is no strict bound but near it: pages in use cannot go, and a run whose timing
    differs may refer in another order. What is before a page's reference is never needed later than
    it, so leaves first costs nothing. References more than `slack` behind the newest one seen were
    not repeated in this run and are passed over.
    """

    wants_identity = True

    def __init__(self, references: Iterable[Hashable], slack: int = 4096) -> None:
        super().__init__()
        self._ahead: dict[Hashable, list[int]] = {}
        """Places of each key's references to come, the next one last."""
        for place, key in enumerate(references):
            self._ahead.setdefault(key, []).append(place)
        for places in self._ahead.values():
            places.reverse()
        self._slack = slack
        self._now = 0

    def entered(self, run: Run, count: int) -> None:
        """Computing pages is a reference to them, as in the recorded run."""
        self._refer(keys_of(run, count))

    def used(self, run: Run) -> None:
        """So is a match."""
        self._refer(keys_of(run, len(run.pages)))

    def _refer(self, keys: list[Hashable]) -> None:
        for key in keys:
            places = self._ahead.get(key)
            if places:
                self._now = max(self._now, places.pop())

    def next_use(self, run: Run) -> float:
        """Place of the next reference to the run's last page; infinite if there is none."""
        (key,) = keys_of(run, 1) or (None,)
        places = self._ahead.get(key, [])
        while places and places[-1] < self._now - self._slack:
            places.pop()
        return places[-1] if places else NEVER

    def rank(self, run: Run) -> tuple[float, int]:
        """The next use, latest first, then pages before the run, most first."""
        return -self.next_use(run), -run.depth_pages


class RecordedLRU(LRUEviction):
    """LRU that writes what it is told, a line of keys for each event, for BeladyEviction."""

    wants_identity = True

    def __init__(self, file: TextIO) -> None:
        super().__init__()
        self._file = file
        finalize(self, file.close)

    def entered(self, run: Run, count: int) -> None:
        """See EvictionPolicy."""
        self._write(keys_of(run, count))

    def used(self, run: Run) -> None:
        """See EvictionPolicy."""
        self._write(keys_of(run, len(run.pages)))

    def _write(self, keys: list[Hashable]) -> None:
        self._file.write(json.dumps([plain_key(key) for key in keys]) + "\n")


def read_references(path: str) -> list[Hashable]:
    """The keys that `RecordedLRU` wrote, in order. ConfigError, naming file and line, otherwise."""
    place, found = f"cache.eviction.path={path!r}", list[Hashable]()
    try:
        with Path(path).expanduser().open(encoding="utf-8") as lines:
            for number, line in enumerate(lines, start=1):
                place = f"{path}, line {number}"
                found += [key_from(value) for value in json.loads(line)]
    except (OSError, ValueError, TypeError) as error:
        raise ConfigError(
            f"{place}: {error}; record the same workload with cache/eviction=lru "
            "cache.eviction.record=FILE first"
        ) from error
    return found


def open_record(path: str) -> TextIO:
    """The file to record into, emptied. ConfigError when it cannot be written."""
    try:
        return Path(path).expanduser().open("w", encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"cache.eviction.record={path!r}: {error.strerror}") from error


def build(config: BeladyConfig, _context: BuildContext) -> BeladyEviction:
    """The policy for the recorded run of `config.path`, without candidates."""
    return BeladyEviction(read_references(config.path))
