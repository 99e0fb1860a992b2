"""Which entries a store has and how large they are: oldest use first, within a limit of bytes."""

import threading
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import Generic, TypeVar

Id = TypeVar("Id")


class LRUBytes(Generic[Id]):
    """A thread-safe account of entries. Stored and promised bytes never exceed the capacity.

    Everything is O(1) except `reserve`, which is O(entries that go).
    """

    def __init__(self, capacity_bytes: int) -> None:
        self.capacity_bytes = capacity_bytes
        self._lock = threading.Lock()
        self._sizes: OrderedDict[Id, int] = OrderedDict()
        self._stored = self._promised = 0

    def __len__(self) -> int:
        return len(self._sizes)

    @property
    def stored_bytes(self) -> int:
        """Bytes of all entries."""
        return self._stored

    def has(self, ids: Sequence[Id]) -> list[bool]:
        """Which of these are entries; no use."""
        sizes = self._sizes
        with self._lock:
            return [i in sizes for i in ids]

    def ids(self) -> list[Id]:
        """All entries, the one unused for the longest time first."""
        with self._lock:
            return list(self._sizes)

    def touch(self, entry: Id) -> bool:
        """Mark a use; False if there is no such entry."""
        with self._lock:
            if entry not in self._sizes:
                return False
            self._sizes.move_to_end(entry)
            return True

    def reserve(self, size: int) -> list[tuple[Id, int]] | None:
        """Promise `size` bytes; the entries that must go for it, which are none any more.

        None if that many can never be promised now; then everything is as before.
        """
        gone: list[tuple[Id, int]] = []
        with self._lock:
            if self._promised + size > self.capacity_bytes:
                return None
            while self._stored + self._promised + size > self.capacity_bytes:
                gone.append(self._oldest())
            self._promised += size
        return gone

    def release(self, size: int) -> list[tuple[Id, int]]:
        """Drop entries, the ones unused for longest first, of this many bytes together."""
        gone: list[tuple[Id, int]] = []
        with self._lock:
            while size > 0 and self._sizes:
                gone.append(self._oldest())
                size -= gone[-1][1]
        return gone

    def cancel(self, size: int) -> None:
        """Nothing came of a promise."""
        with self._lock:
            self._promised -= size

    def commit(self, entry: Id, size: int) -> None:
        """A promise was kept: the entry is there, used just now."""
        with self._lock:
            self._promised -= size
            self._put(entry, size)

    def adopt(self, entries: Iterable[tuple[Id, int]]) -> None:
        """Take over entries that exist, used in this order, whatever the capacity."""
        with self._lock:
            for entry, size in entries:
                self._put(entry, size)

    def forget(self, entry: Id) -> bool:
        """Drop an entry; False if there was none."""
        with self._lock:
            size = self._sizes.pop(entry, None)
            self._stored -= size or 0
            return size is not None

    def rename(self, entry: Id, to: Id) -> int | None:
        """Keep the bytes of an entry under another name, as the next to go; how many those are."""
        with self._lock:
            size = self._sizes.pop(entry, None)
            if size is not None:
                self._stored -= size
                self._put(to, size)
                self._sizes.move_to_end(to, last=False)
            return size

    def _oldest(self) -> tuple[Id, int]:
        entry, size = self._sizes.popitem(last=False)
        self._stored -= size
        return entry, size

    def _put(self, entry: Id, size: int) -> None:
        self._stored += size - self._sizes.pop(entry, 0)
        self._sizes[entry] = size
