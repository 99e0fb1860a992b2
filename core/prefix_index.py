"""The prefix-index seam: how a token prefix maps to computed pages.

The core decides what may be looked up (never the whole prompt: one token is always computed),
what is inserted (full pages whose rows are computed and committed), who is pinned (page reference
counts), and which salt separates models, adapters and tenants.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from interlock.core.batch import PageId, Pages
from interlock.core.retention import DEFAULT_PRIORITY

Units = NDArray[np.int64]


class PrefixKey(NamedTuple):
    """What identifies the content of a run of pages.

    `units` is [pages, units_per_page]: row i holds everything that page i's rows depend on beyond
    the pages before it (its token ids, and the tokens after it that a drafter looks back from; or
    one word standing for all of them in trace replay). Two pages are interchangeable exactly when
    their salts are equal and their rows and all rows before them are equal.
    """

    salt: bytes
    units: Units


@dataclass(slots=True, eq=False)
class Run:
    """Pages that follow each other and share one history: what eviction policies rank.

    The index creates runs, sets `pages`, `parent`, `children` and `depth_pages` (pages before the
    run); the core sets the times and counts. A run is evicted from its tail, and only while no
    other run follows it. `pages` is an int32 array (test its length, not its truth): a
    view of the index's memory that is good until the index next changes.
    """

    pages: Pages
    parent: "Run | None"
    depth_pages: int
    salt: bytes
    children: int = 0
    created_s: float = 0.0
    last_used_s: float = 0.0
    uses: int = 0
    priority: int = DEFAULT_PRIORITY
    """How much requests want its pages kept (`core/retention.py`)."""
    state: dict[str, float] = field(default_factory=dict)
    """Free for the eviction policy, but for RETAIN_S of `core/retention.py`."""
    keys: NDArray[Any] | None = None
    """A key of each page, hashable through `tolist`: of the salt and all rows up to it, so that it
    recognises content that comes back. None unless the index was told to keep keys."""

    def path(self) -> "Iterator[Run]":
        """This run and those that it follows, back to the first pages."""
        run: Run | None = self
        while run is not None:
            yield run
            run = run.parent


class Part(NamedTuple):
    """An indexed page whose row begins with `units` of the units asked for."""

    page: PageId
    units: int


class Inserted(NamedTuple):
    """Outcome of an insertion.

    `pages` are the pages that now stand for the inserted rows: an already indexed page where the
    content was known, else the caller's.
    """

    pages: Pages
    kept: int
    """How many of the caller's pages the index now holds (the last `kept` of them)."""


class PrefixIndex(ABC):
    """Maps prefixes to pages. Every indexed page is in exactly one run."""

    retains: bool = True
    """False: nothing is ever kept, so no eviction is needed."""

    def keep_keys(self) -> bool:
        """Set `Run.keys` from now on (called while the index is empty); False: it cannot."""
        return False

    @abstractmethod
    def match(self, key: PrefixKey) -> Pages:
        """Pages of the longest indexed prefix of `key`, in order. Changes nothing."""

    def partial(self, salt: bytes, after: PageId | None, units: Units) -> Part | None:
        """Of the pages right after an indexed one (None: the first pages), one whose row begins
        with the most of `units`; None: no row begins so, or the index does not offer parts.
        """
        return None

    @abstractmethod
    def insert(self, key: PrefixKey, after: PageId | None, pages: Pages) -> Inserted:
        """Index `pages` for the rows of `key`, following the indexed page `after` (None: root).

        `key.units` holds only the rows of `pages`. Cost is in the rows given, not in what precedes
        them. Returns the canonical pages; the caller frees its own copies of known ones.
        """

    def isolate(self, page: PageId) -> None:
        """Make an indexed page the last of its run, because its history now differs from what
        follows. Of a run that is split, the existing object keeps the tail; statistics carry over.
        Indexes whose runs are single pages need not do anything.
        """

    @abstractmethod
    def run_of(self, page: PageId) -> Run | None:
        """The run that holds an indexed page, None if the page is not indexed."""

    @abstractmethod
    def drop_tail(self, run: Run, count: int) -> Pages:
        """Forget the last `count` pages of a run without children; returns them.

        A run that becomes empty is removed and its parent's `children` falls by one.
        """

    @abstractmethod
    def runs(self) -> Iterator[Run]:
        """Every run, for integrity checks and pictures."""

    @abstractmethod
    def num_pages(self) -> int:
        """Indexed pages. O(1)."""

    def check_integrity(self) -> None:
        """Assert the structure from scratch: counts, parents, no page in two runs."""
        seen: set[PageId] = set()
        children: dict[int, int] = {}
        for run in self.runs():
            pages = [PageId(page) for page in run.pages.tolist()]
            assert pages, "an empty run is indexed"
            assert not seen & set(pages), "a page is in two runs"
            seen.update(pages)
            assert all(self.run_of(page) is run for page in pages), "run_of is stale"
            if run.parent is not None:
                children[id(run.parent)] = children.get(id(run.parent), 0) + 1
                assert run.depth_pages == run.parent.depth_pages + len(run.parent.pages)
            else:
                assert run.depth_pages == 0
        for run in self.runs():
            assert run.children == children.get(id(run), 0), "children count is stale"
        assert len(seen) == self.num_pages(), "page count is stale"
