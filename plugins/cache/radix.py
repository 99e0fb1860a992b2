"""A radix tree over page rows, as in SGLang's RadixAttention."""

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from interlock.core.batch import PageId, Pages
from interlock.core.component import BuildContext
from interlock.core.prefix_index import Inserted, PrefixIndex, PrefixKey, Run, Units
from interlock.plugins.cache import RadixConfig

_NO_PAGES: Pages = np.empty(0, dtype=np.int32)
_DEPTHS = 2**32
"""Node numbers and depths share one int64 of the page table."""


@dataclass(slots=True, eq=False)
class _Node(Run):
    """A run and its rows. Both live in buffers with room to grow; `pages` is the filled part."""

    number: int = 0
    rows: Units = field(kw_only=True, repr=False)
    page_buffer: Pages = field(kw_only=True, repr=False)
    nodes: "dict[bytes, _Node]" = field(default_factory=dict, repr=False)
    """The runs that follow, by the bytes of their first row."""

    def append(self, rows: Units, pages: Pages) -> None:
        """Extend the run. A full buffer grows by half, so a page is moved O(1) times."""
        size = len(self.pages)
        needed = size + len(pages)
        if needed > len(self.rows):
            self._move(0, size, room=max(needed, size + size // 2))
        self.rows[size:needed] = rows
        self.page_buffer[size:needed] = pages
        self.pages = self.page_buffer[:needed]

    def keep(self, start: int, end: int) -> None:
        """Shorten the run to its pages start .. end - 1; the memory of the others is released.

        Cutting the tail off copies nothing while the buffer stays at least half full.
        """
        if start == 0 and 2 * end >= len(self.rows):
            self.pages = self.page_buffer[:end]
        else:
            self._move(start, end, room=end - start)

    def _move(self, start: int, end: int, room: int) -> None:
        rows, page_buffer = self.rows[start:end], self.page_buffer[start:end]
        self.rows = np.empty((room, rows.shape[1]), dtype=np.int64)
        self.page_buffer = np.empty(room, dtype=np.int32)
        self.rows[: end - start] = rows
        self.page_buffer[: end - start] = page_buffer
        self.pages = self.page_buffer[: end - start]


class RadixIndex(PrefixIndex):
    """Runs of pages as edges of a tree, one tree a salt (Zheng et al., NeurIPS 2024, section 3).

    Rows are compared a run at a time by vectorised code: Python runs once a node, not once a page.
    An insertion right after the last page of a leaf, which the caller holds, extends it in place.
    One that went through known rows first starts a run of its own, since the leaf may be an
    eviction candidate. One that leaves a run in its middle splits it there: the existing Run object
    keeps the tail and what follows, a new one with the same statistics gets the pages before it.
    Both copy, so memory follows the pages kept.

    Where a page is: `_where[page]` packs the number of its node and its distance from the root.
    Dropping a page leaves the entry as it is: it holds only if that node really has the page there.
    """

    def __init__(self, num_pages: int = 0) -> None:
        """Page ids below `num_pages` need no growth of the page table; larger ones are allowed."""
        self._where = np.zeros(num_pages, dtype=np.int64)
        self._nodes: dict[int, _Node] = {}
        self._roots: dict[bytes, dict[bytes, _Node]] = {}
        self._last_number = 0
        self._size = 0

    def match(self, key: PrefixKey) -> Pages:
        """See PrefixIndex."""
        units = np.ascontiguousarray(key.units, dtype=np.int64)
        parts: list[Pages] = []
        nodes, done = self._roots.get(key.salt, {}), 0
        while done < len(units):
            node = nodes.get(units[done].tobytes())
            if node is None:
                break
            same = _common_rows(node.rows[: len(node.pages)], units[done:])
            parts.append(node.pages[:same])
            if same < len(node.pages):
                break
            nodes, done = node.nodes, done + same
        return _joined(parts)

    def insert(self, key: PrefixKey, after: PageId | None, pages: Pages) -> Inserted:
        """See PrefixIndex."""
        units = np.ascontiguousarray(key.units, dtype=np.int64)
        node, used = (None, 0) if after is None else self._place(after)
        assert node is None or node.salt == key.salt, "continued under another salt"
        parts: list[Pages] = []
        done = 0
        while done < len(units):
            if node is None or used == len(node.pages):
                nodes = self._roots.get(key.salt, {}) if node is None else node.nodes
                following = nodes.get(units[done].tobytes()) if nodes else None
                if following is None:
                    break
                node, used = following, 0
            same = _common_rows(node.rows[used : len(node.pages)], units[done:])
            if same == 0:
                break
            parts.append(node.pages[used : used + same])
            used, done = used + same, done + same
        if done < len(units):
            if node is not None and used < len(node.pages):
                node = self._split(node, used)
            self._add(key.salt, node, units[done:], pages[done:], extend=done == 0)
            parts.append(pages[done:])
        return Inserted(_joined(parts), len(units) - done)

    def _place(self, page: PageId) -> tuple[_Node, int]:
        """The node of an indexed page and how many of the node's pages end with it."""
        found = self._find(page)
        assert found is not None, f"page {page} is not indexed"
        return found

    def _find(self, page: PageId) -> tuple[_Node, int] | None:
        if page >= len(self._where):
            return None
        number, depth = divmod(self._where.item(page), _DEPTHS)
        node = self._nodes.get(number)
        if node is None:
            return None
        place = depth - node.depth_pages
        if not 0 <= place < len(node.pages) or node.pages.item(place) != page:
            return None
        return node, place + 1

    def _add(
        self, salt: bytes, parent: _Node | None, rows: Units, pages: Pages, extend: bool
    ) -> None:
        """Index pages after the end of `parent`, whose next row is none of its nodes'."""
        depth = parent.depth_pages + len(parent.pages) if parent else 0
        self._size += len(pages)
        if parent and extend and not parent.children:
            parent.append(rows, pages)
            node = parent
        else:
            node = self._new_node(salt, parent, depth, rows, pages)
            nodes = parent.nodes if parent else self._roots.setdefault(salt, {})
            nodes[rows[0].tobytes()] = node
            if parent:
                parent.children += 1
        self._locate(node, depth, pages)

    def _locate(self, node: _Node, depth: int, pages: Pages) -> None:
        """Enter consecutive pages, the first at `depth`, into the page table."""
        first = node.number * _DEPTHS + depth
        if len(pages) == 1 and pages[0] < len(self._where):
            self._where[pages[0]] = first
            return
        places = pages.astype(np.intp)  # numpy scatters three times slower through int32 indexes
        values = np.arange(first, first + len(pages))
        try:
            self._where[places] = values
        except IndexError:
            room = max(int(places.max()) + 1, 2 * len(self._where)) - len(self._where)
            self._where = np.pad(self._where, (0, room))
            self._where[places] = values

    def _new_node(
        self, salt: bytes, parent: _Node | None, depth: int, rows: Units, pages: Pages
    ) -> _Node:
        self._last_number += 1
        buffer = pages.copy()
        node = _Node(
            pages=buffer,
            parent=parent,
            depth_pages=depth,
            salt=salt,
            number=self._last_number,
            rows=rows.copy(),
            page_buffer=buffer,
        )
        self._nodes[node.number] = node
        return node

    def _split(self, node: _Node, at: int) -> _Node:
        """Put the first `at` pages of a node into a new node above it, which is returned."""
        parent = node.parent
        assert parent is None or isinstance(parent, _Node)
        upper = self._new_node(node.salt, parent, node.depth_pages, node.rows[:at], node.pages[:at])
        upper.created_s, upper.last_used_s = node.created_s, node.last_used_s
        upper.uses, upper.priority = node.uses, node.priority
        upper.state = dict(node.state)
        siblings = parent.nodes if parent else self._roots[node.salt]
        siblings[upper.rows[0].tobytes()] = upper
        self._locate(upper, upper.depth_pages, upper.pages)
        node.keep(at, len(node.pages))
        node.parent = upper
        node.depth_pages += at
        upper.children = 1
        upper.nodes[node.rows[0].tobytes()] = node
        return upper

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
        assert isinstance(run, _Node)
        assert run.children == 0, "other runs follow this run"
        rest = len(run.pages) - count
        assert 0 <= rest <= len(run.pages), f"cannot drop {count} of {len(run.pages)} pages"
        dropped = run.pages[rest:].copy()
        self._size -= count
        if rest == 0 and count:
            self._remove(run)
        run.keep(0, rest)
        return dropped

    def _remove(self, node: _Node) -> None:
        del self._nodes[node.number]
        first = node.rows[0].tobytes()
        parent = node.parent
        if parent is None:
            del self._roots[node.salt][first]
            if not self._roots[node.salt]:
                del self._roots[node.salt]
            return
        assert isinstance(parent, _Node)
        del parent.nodes[first]
        parent.children -= 1

    def runs(self) -> Iterator[Run]:
        """See PrefixIndex."""
        return iter(self._nodes.values())

    def num_pages(self) -> int:
        """See PrefixIndex."""
        return self._size


def _joined(parts: list[Pages]) -> Pages:
    """A new array: callers keep it while the runs change."""
    if len(parts) == 1:
        return parts[0].copy()
    return np.concatenate(parts) if parts else _NO_PAGES


def _common_rows(ours: Units, theirs: Units) -> int:
    """How many leading rows are equal. Flat comparison: short inner axes are slow to reduce."""
    count = min(len(ours), len(theirs))
    equal = ours[:count].reshape(-1) == theirs[:count].reshape(-1)
    first_other = int(equal.argmin())
    return count if equal[first_other] else first_other // ours.shape[1]


def build(_config: RadixConfig, context: BuildContext) -> RadixIndex:
    """An empty index for page ids below `context.num_pages`."""
    return RadixIndex(context.num_pages)
