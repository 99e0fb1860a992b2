"""A table from chained page keys to pages, as in vLLM's automatic prefix caching."""

from bisect import bisect_left
from collections.abc import Iterator, Sequence

import numpy as np

from interlock.core.batch import PageId, Pages
from interlock.core.component import BuildContext
from interlock.core.prefix_index import Part, Units
from interlock.plugins.cache import BlockHashConfig
from interlock.plugins.cache.chain_keys import CHAINS, ChainKeys, FastKeys, Keys, chained, words
from interlock.plugins.cache.following import Following
from interlock.plugins.cache.key_table import KeyTable
from interlock.plugins.cache.run_tree import Column, Node, RunTree, Walk

FIRST_LOOK = 32
"""Pages whose keys a match computes at once; as long as all are indexed, twice as many next."""


class BlockHashIndex(RunTree):
    """Every page is found by a key of its row and of all rows before it.

    A page is indexed only while those before it are, so the last page of a prompt whose key is in
    the table ends the longest indexed prefix: runs before it say which pages those are. Unless keys
    are trusted, the rows of the whole way are then compared; where a row differs, two contents have
    one key, and the way is looked up again page by page among all pages of each key. So a weak key
    costs time and never returns another prompt's page. Rows are kept for that comparison alone.
    """

    def __init__(
        self, chain: ChainKeys | None = None, num_pages: int = 0, partial_pages: bool = False
    ) -> None:
        """`chain` computes the keys, FastKeys by default. Parts of pages need the rows of all."""
        super().__init__(num_pages)
        self._following = Following() if partial_pages else None
        self._chain = FastKeys() if chain is None else chain
        self._table = KeyTable(num_pages)

    def keep_keys(self) -> bool:
        """See PrefixIndex: keys are always kept."""
        return True

    def partial(self, salt: bytes, after: PageId | None, units: Units) -> Part | None:
        """See PrefixIndex. O(runs that follow)."""
        if self._following is None:
            return None
        node, used = (None, 0) if after is None else self._place(after)
        return self._following.part(salt, node, used, units)

    def _linked(self, node: Node) -> None:
        if self._following is not None:
            self._following.link(node)

    def _unlinked(self, node: Node) -> None:
        if self._following is not None:
            self._following.unlink(node)

    def _walk(self, salt: bytes, node: Node | None, used: int, rows: Units) -> Walk:
        keys = self._known_keys(salt, node, used, rows)
        if not len(keys):
            return Walk([], 0, node, used)
        for place in self._places(keys[-1:]):
            walk = self._way_to(place, salt, node, used, rows[: len(keys)])
            if walk is not None:
                return walk
        return self._page_by_page(salt, node, used, rows, keys)

    def _known_keys(self, salt: bytes, node: Node | None, used: int, rows: Units) -> Keys:
        """Keys of leading rows, up to one that is not in the table: of the first such or earlier
        ones, where contents share keys."""
        found: list[Keys] = []
        before = np.empty(0) if node is None or node.keys is None else node.keys[used - 1 : used]
        done, look = 0, FIRST_LOOK
        while done < len(rows):
            keys = self._chain.keys(salt, before, rows[done : done + look])
            listed = words(keys).tolist()
            known = bisect_left(range(len(listed)), 1, key=lambda i: not self._knows(listed[i]))
            found.append(keys[:known])
            if known < len(listed):
                break
            before, done, look = keys[-1:], done + look, 2 * look
        return np.concatenate(found) if found else before[:0]

    def _knows(self, word: int) -> bool:
        return next(self._table.pages(word), None) is not None

    def _places(self, key: Keys) -> Iterator[tuple[Node, int]]:
        """Where pages of one key are."""
        for page in self._table.pages(words(key).item()):
            node, end = self._place(PageId(page))
            assert node.keys is not None
            if node.keys[end - 1] == key[0]:
                yield node, end

    def _way_to(
        self, place: tuple[Node, int], salt: bytes, start: Node | None, used: int, rows: Units
    ) -> Walk | None:
        """The way from `used` pages of `start` to another place, if it is as long as `rows` and,
        unless keys are trusted, has these rows."""
        (last, end), (node, count) = place, place
        depth = used + (start.depth_pages if start else 0)
        if last.salt != salt or last.depth_pages + end != depth + len(rows):
            return None
        parts: list[Pages] = []
        left = len(rows)
        while True:
            first = max(0, count - left)
            left -= count - first
            ours, theirs = node.rows[first:count], rows[left : left + count - first]
            if not (self._chain.trusted or np.array_equal(ours, theirs)):
                return None
            parts.append(node.pages[first:count])
            if not left:
                break
            assert isinstance(node.parent, Node)
            node = node.parent
            count = len(node.pages)
        begins_there = node is start or (first == 0 and node.parent is start)
        return Walk(parts[::-1], len(rows), last, end) if begins_there else None

    def _page_by_page(
        self, salt: bytes, node: Node | None, used: int, rows: Units, keys: Keys
    ) -> Walk:
        parts: list[Pages] = []
        for number, row in enumerate(rows[: len(keys)]):
            places = self._places(keys[number : number + 1])
            found = next((p for p in places if _follows(p, salt, node, used, row)), None)
            if found is None:
                break
            node, used = found
            parts.append(node.pages[used - 1 : used])
        return Walk(parts, len(parts), node, used)

    def _columns(
        self, salt: bytes, node: Node | None, used: int, rows: Units, pages: Pages
    ) -> list[Column]:
        keys = chained(self._chain, salt, node, used, rows)
        needed = self._following is not None or not self._chain.trusted
        return [pages, rows if needed else rows[:, :0], keys]

    def _entered(self, node: Node, columns: Sequence[Column]) -> None:
        pages, _, keys = columns
        self._table.add(words(keys), pages)

    def _dropped(self, node: Node, rest: int) -> None:
        self._table.remove(node.pages[rest:])


def _follows(
    place: tuple[Node, int], salt: bytes, before: Node | None, used: int, row: Units
) -> bool:
    """Whether a page comes right after `used` pages of a run (None: begins) and has this row."""
    node, end = place
    if end > 1:
        after = node is before and end == used + 1
    else:
        at_end = before is None or used == len(before.pages)
        after = node.parent is before and at_end and node.salt == salt
    return after and np.array_equal(node.rows[end - 1], row[: node.rows.shape[1]])


def build(config: BlockHashConfig, context: BuildContext) -> BlockHashIndex:
    """An empty index with the configured keys, for page ids below `context.num_pages`."""
    return BlockHashIndex(CHAINS[config.hash](), context.num_pages, config.partial_pages)
