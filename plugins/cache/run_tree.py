"""Runs of pages as a tree, whatever finds the way into it: what radix and block_hash share."""

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from interlock.core.batch import PageId, Pages
from interlock.core.prefix_index import Inserted, PrefixIndex, PrefixKey, Run, Units

Column = NDArray[Any]
NO_PAGES: Pages = np.empty(0, dtype=np.int32)


@dataclass(slots=True, eq=False)
class Node(Run):
    """A run and what is known of its pages, a column each: the pages, their rows, their keys.

    Columns are buffers with room to grow, of which the first `len(pages)` entries are filled.
    """

    number: int = 0
    columns: list[Column] = field(kw_only=True, repr=False)

    def __post_init__(self) -> None:
        self._fill(len(self.pages))

    @property
    def rows(self) -> Units:
        """The filled part of the column of rows."""
        return self.columns[1][: len(self.pages)]

    @property
    def end_pages(self) -> int:
        """Pages before the run and in it."""
        return self.depth_pages + len(self.pages)

    def append(self, columns: Sequence[Column]) -> None:
        """Extend the run. Full buffers grow by half, so a page is moved O(1) times."""
        size = len(self.pages)
        needed = size + len(columns[0])
        if needed > len(self.columns[0]):
            self._move(0, size, room=max(needed, size + size // 2))
        for column, more in zip(self.columns, columns, strict=True):
            column[size:needed] = more
        self._fill(needed)

    def keep(self, start: int, end: int) -> None:
        """Shorten the run to its pages start .. end - 1; the memory of the others is released.

        Cutting the tail off copies nothing while the buffers stay at least half full.
        """
        if start != 0 or 2 * end < len(self.columns[0]):
            self._move(start, end, room=end - start)
        self._fill(end - start)

    def _move(self, start: int, end: int, room: int) -> None:
        for place, column in enumerate(self.columns):
            moved = np.empty((room, *column.shape[1:]), dtype=column.dtype)
            moved[: end - start] = column[start:end]
            self.columns[place] = moved

    def _fill(self, size: int) -> None:
        self.pages = self.columns[0][:size]
        self.keys = self.columns[2][:size] if len(self.columns) > 2 else None


class Walk(NamedTuple):
    """A way along indexed rows: their pages in parts, how many, and where it ended."""

    parts: list[Pages]
    done: int
    node: Node | None
    used: int
    """Pages of `node` up to the end of the way."""


class RunTree(PrefixIndex):
    """Runs, where each page is, and how runs are extended, split and cut.

    An insertion right after the last page of a leaf, which the caller holds, extends it in place.
    One that went through known rows first starts a run of its own, since the leaf may be an
    eviction candidate. One that leaves a run in its middle splits it there: the existing Run object
    keeps the tail and what follows, a new one with the same statistics gets the pages before it.
    Both copy, so memory follows the pages kept.

    Where a page is: `_owner[page]` is the number of its node. Dropping a page leaves the entry as
    it is: it holds only if that node really has the page. Its place in the run is searched for
    unless it is the last one, which is what the core asks for.
    """

    def __init__(self, num_pages: int) -> None:
        """Page ids below `num_pages` need no growth of the page table; larger ones are allowed."""
        self._owner = np.zeros(num_pages, dtype=np.int32)
        self._nodes: dict[int, Node] = {}
        self._last_number = 0
        self._size = 0

    # What the two ways of finding pages differ in ----------------

    @abstractmethod
    def _walk(self, salt: bytes, node: Node | None, used: int, rows: Units) -> Walk:
        """Follow `rows` from the place after `used` pages of `node` (None: the root)."""

    def _columns(
        self, salt: bytes, node: Node | None, used: int, rows: Units, pages: Pages
    ) -> list[Column]:
        """What is kept of pages that follow the first `used` pages of `node`."""
        return [pages, rows]

    def _entered(self, node: Node, columns: Sequence[Column]) -> None:
        """These pages were added at the end of a node."""

    def _dropped(self, node: Node, rest: int) -> None:
        """The pages of a node from place `rest` on are about to go."""

    def _linked(self, node: Node) -> None:
        """A node follows its parent, or begins a tree, from now on."""

    def _unlinked(self, node: Node) -> None:
        """A node is about to go."""

    # PrefixIndex ----------------

    def match(self, key: PrefixKey) -> Pages:
        """See PrefixIndex."""
        return _joined(self._walk(key.salt, None, 0, _plain(key.units)).parts)

    def insert(self, key: PrefixKey, after: PageId | None, pages: Pages) -> Inserted:
        """See PrefixIndex."""
        rows = _plain(key.units)
        node, used = (None, 0) if after is None else self._place(after)
        assert node is None or node.salt == key.salt, "continued under another salt"
        parts, done, node, used = self._walk(key.salt, node, used, rows)
        if done < len(rows):
            columns = self._columns(key.salt, node, used, rows[done:], pages[done:])
            if node is not None and used < len(node.pages):
                node = self._split(node, used)
            self._add(key.salt, node, columns, extend=done == 0)
            if done == 0:
                return Inserted(pages, len(rows))
            parts = [*parts, pages[done:]]
        return Inserted(_joined(parts), len(rows) - done)

    def isolate(self, page: PageId) -> None:
        """See PrefixIndex."""
        node, used = self._place(page)
        if used < len(node.pages):
            self._split(node, used)

    def run_of(self, page: PageId) -> Run | None:
        """See PrefixIndex."""
        found = self._find(page)
        return found[0] if found else None

    def drop_tail(self, run: Run, count: int) -> Pages:
        """See PrefixIndex."""
        assert isinstance(run, Node)
        assert run.children == 0, "other runs follow this run"
        rest = len(run.pages) - count
        assert 0 <= rest <= len(run.pages), f"cannot drop {count} of {len(run.pages)} pages"
        dropped = run.pages[rest:].copy()
        self._dropped(run, rest)
        self._size -= count
        if rest == 0 and count:
            self._remove(run)
        run.keep(0, rest)
        return dropped

    def runs(self) -> Iterator[Run]:
        """See PrefixIndex."""
        return iter(self._nodes.values())

    def num_pages(self) -> int:
        """See PrefixIndex."""
        return self._size

    # The tree ----------------

    def _place(self, page: PageId) -> tuple[Node, int]:
        """The node of an indexed page and how many of the node's pages end with it."""
        found = self._find(page)
        assert found is not None, f"page {page} is not indexed"
        return found

    def _find(self, page: PageId) -> tuple[Node, int] | None:
        if page >= len(self._owner):
            return None
        node = self._nodes.get(self._owner.item(page))
        if node is None:
            return None
        if node.pages.item(-1) == page:
            return node, len(node.pages)
        places = np.flatnonzero(node.pages == page)
        return (node, int(places[0]) + 1) if len(places) else None

    def _add(
        self, salt: bytes, parent: Node | None, columns: Sequence[Column], extend: bool
    ) -> None:
        """Index pages after the end of `parent`, whose next row is no indexed one."""
        self._size += len(columns[0])
        if parent and extend and not parent.children:
            parent.append(columns)
            node = parent
        else:
            node = self._new_node(salt, parent, parent.end_pages if parent else 0, columns)
            if parent:
                parent.children += 1
            self._linked(node)
        self._own(node, columns[0])
        self._entered(node, columns)

    def _own(self, node: Node, pages: Pages) -> None:
        """Enter pages of a node into the page table."""
        if len(pages) == 1 and pages.item(0) < len(self._owner):  # what decoding adds: no array
            self._owner[pages.item(0)] = node.number
            return
        places = pages.astype(np.intp)  # numpy scatters three times slower through int32 indexes
        try:
            self._owner[places] = node.number
        except IndexError:
            room = max(int(places.max()) + 1, 2 * len(self._owner)) - len(self._owner)
            self._owner = np.pad(self._owner, (0, room))
            self._owner[places] = node.number

    def _new_node(
        self, salt: bytes, parent: Node | None, depth: int, columns: Sequence[Column]
    ) -> Node:
        self._last_number += 1
        kept = [column.copy() for column in columns]
        node = Node(
            kept[0], parent, depth_pages=depth, salt=salt, number=self._last_number, columns=kept
        )
        self._nodes[node.number] = node
        return node

    def _split(self, node: Node, at: int) -> Node:
        """Put the first `at` pages of a node into a new node above it, which is returned."""
        parent = node.parent
        assert parent is None or isinstance(parent, Node)
        above = [column[:at] for column in node.columns]
        upper = self._new_node(node.salt, parent, node.depth_pages, above)
        upper.created_s, upper.last_used_s = node.created_s, node.last_used_s
        upper.uses, upper.priority = node.uses, node.priority
        upper.state = dict(node.state)
        self._own(upper, upper.pages)
        node.keep(at, len(node.pages))
        node.parent = upper
        node.depth_pages += at
        upper.children = 1
        self._linked(upper)
        self._linked(node)
        return upper

    def _remove(self, node: Node) -> None:
        del self._nodes[node.number]
        self._unlinked(node)
        if node.parent is not None:
            node.parent.children -= 1


def common_rows(ours: Units, theirs: Units) -> int:
    """How many leading rows are equal. Flat comparison: short inner axes are slow to reduce."""
    count = min(len(ours), len(theirs))
    equal = ours[:count].reshape(-1) == theirs[:count].reshape(-1)
    first_other = int(equal.argmin())
    return count if equal[first_other] else first_other // ours.shape[1]


def _plain(units: Units) -> Units:
    return np.ascontiguousarray(units, dtype=np.int64)


def _joined(parts: Sequence[Pages]) -> Pages:
    """A new array: callers keep it while the runs change."""
    if len(parts) == 1:
        return parts[0].copy()
    return np.concatenate(parts) if parts else NO_PAGES
