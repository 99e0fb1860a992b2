"""A table from chained page hashes to pages, as in vLLM's automatic prefix caching."""

import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from hashlib import blake2b

import numpy as np

from interlock.core.batch import PageId, Pages
from interlock.core.component import BuildContext
from interlock.core.prefix_index import Inserted, PrefixIndex, PrefixKey, Run
from interlock.plugins.cache import BlockHashConfig

KeyFunction = Callable[[bytes, bytes], bytes]
"""(key of the page before, or of the salt; this page's row) -> this page's key."""

_ROOT = b"interlock/block_hash/1"
_NO_PAGES: Pages = np.empty(0, dtype=np.int32)


def blake2b_key(parent: bytes, row: bytes) -> bytes:
    """A 16-byte digest of the parent's key and the row."""
    return blake2b(parent + row, digest_size=16).digest()


def crc32_key(parent: bytes, row: bytes) -> bytes:
    """A 4-byte checksum of the row, started from the parent's key."""
    return zlib.crc32(row, zlib.crc32(parent)).to_bytes(4, "little")


@dataclass(slots=True, eq=False)
class _Entry(Run):
    """A page with what its key stood for."""

    key: bytes = b""
    row: bytes = b""


class BlockHashIndex(PrefixIndex):
    """Each page is its own run, found by a hash of its row and of the key of the page before it.

    A hit counts only if the row is equal and the page before it is the one just matched, so by
    induction a weak key function costs time and never returns another prompt's page. Keys depend
    on nothing but salt and rows: every process computes the same ones. Matching and inserting
    cost one key and one comparison a page; memory is one row and one small object a page.
    """

    def __init__(self, key_function: KeyFunction = blake2b_key) -> None:
        self._key = key_function
        self._table: dict[bytes, list[_Entry]] = {}
        self._entries: dict[int, _Entry] = {}
        self._page_ids = _NO_PAGES

    def match(self, key: PrefixKey) -> Pages:
        """See PrefixIndex."""
        found: list[int] = []
        parent, previous = self._root(key.salt), None
        for row in _rows(key):
            parent = self._key(parent, row)
            previous = self._find(parent, key.salt, row, previous)
            if previous is None:
                break
            found.append(int(previous.pages[0]))
        return np.array(found, dtype=np.int32)

    def insert(self, key: PrefixKey, after: PageId | None, pages: Pages) -> Inserted:
        """See PrefixIndex."""
        previous = None if after is None else self._entries[int(after)]
        parent = self._root(key.salt) if previous is None else previous.key
        assert previous is None or previous.salt == key.salt, "continued under another salt"
        canonical, known = pages.copy(), 0
        self._know(pages)
        for place, row in enumerate(_rows(key)):
            parent = self._key(parent, row)
            entry = self._find(parent, key.salt, row, previous)
            if entry is None:
                entry = self._add(int(pages[place]), key.salt, parent, row, previous)
            else:
                canonical[place] = entry.pages[0]
                known += 1
            previous = entry
        return Inserted(canonical, len(pages) - known)

    def _root(self, salt: bytes) -> bytes:
        return self._key(_ROOT, salt)

    def _find(self, key: bytes, salt: bytes, row: bytes, previous: _Entry | None) -> _Entry | None:
        for entry in self._table.get(key, ()):
            if entry.parent is previous and entry.row == row and entry.salt == salt:
                return entry
        return None

    def _add(
        self, page: int, salt: bytes, key: bytes, row: bytes, previous: _Entry | None
    ) -> _Entry:
        entry = _Entry(
            pages=self._page_ids[page : page + 1],
            parent=previous,
            depth_pages=previous.depth_pages + 1 if previous else 0,
            salt=salt,
            key=key,
            row=row,
        )
        assert page not in self._entries, f"page {page} is already indexed"
        self._entries[page] = entry
        self._table.setdefault(key, []).append(entry)
        if previous:
            previous.children += 1
        return entry

    def _know(self, pages: Pages) -> None:
        """Runs are one-element views of one array of all page ids, which cost no copy each."""
        most = int(pages.max(initial=-1)) + 1
        if most > len(self._page_ids):
            self._page_ids = np.arange(max(most, 2 * len(self._page_ids)), dtype=np.int32)

    def run_of(self, page: PageId) -> Run | None:
        """See PrefixIndex."""
        return self._entries.get(int(page))

    def drop_tail(self, run: Run, count: int) -> Pages:
        """See PrefixIndex."""
        assert run.children == 0, "other pages follow this run"
        assert 0 <= count <= len(run.pages), f"cannot drop {count} of {len(run.pages)} pages"
        if count == 0:
            return _NO_PAGES
        entry = self._entries.pop(int(run.pages[0]))
        assert entry is run, "the run is not in this index"
        twins = self._table[entry.key]
        twins.remove(entry)
        if not twins:
            del self._table[entry.key]
        if entry.parent is not None:
            entry.parent.children -= 1
        dropped, entry.pages = entry.pages.copy(), _NO_PAGES
        return dropped

    def runs(self) -> Iterator[Run]:
        """See PrefixIndex."""
        return iter(self._entries.values())

    def num_pages(self) -> int:
        """See PrefixIndex."""
        return len(self._entries)


def _rows(key: PrefixKey) -> Iterator[bytes]:
    """The bytes of each row, little-endian whatever the machine."""
    data = np.ascontiguousarray(key.units, dtype="<i8").tobytes()
    width = 8 * key.units.shape[1]
    return (data[start : start + width] for start in range(0, len(data), width))


def build(config: BlockHashConfig, _context: BuildContext) -> BlockHashIndex:
    """An empty index with the configured key function."""
    return BlockHashIndex({"blake2b": blake2b_key, "crc32": crc32_key}[config.hash])
