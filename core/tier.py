"""The tier seam: a store of cached pages beyond the device, and its way of saying no.

A store keeps blobs under keys; it knows nothing of pages, requests or planes. All payloads of an
engine have one size. The core makes the keys, decides what is moved when, and holds the pages
that are being copied; transfer threads call the store.
"""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Sequence

Key = bytes
"""32 bytes: the hash of everything that a page's rows depend on, and of how they are stored."""
KEY_BYTES = 32


class KVTier(ABC):
    """Blobs under keys, in memory, on a disk or on a server.

    Every method may be called from several threads at once. None raises for what goes wrong
    outside the process (a full disk, a damaged file, a server that is gone): the result says no,
    and `failures` counts the reason under a short name. No call takes longer than the store's own
    stated time. Keys are content hashes: two writes of a key have the same bytes.
    """

    answers_at_once: bool = False
    """True: `holds` looks into memory only, so that it may be asked between two steps."""

    at_once: int = 1
    """How many entries `read_many` and `write_many` should be given, if there are as many."""

    def __init__(self) -> None:
        self.failures: Counter[str] = Counter()
        """Reason -> times. A key that is simply not there is no failure."""

    @property
    @abstractmethod
    def capacity_bytes(self) -> int | None:
        """Payload bytes that fit; None if the store sets no limit of its own."""

    @abstractmethod
    def used_bytes(self) -> int:
        """Payload bytes stored now, as far as this process knows."""

    @abstractmethod
    def holds(self, keys: Sequence[Key]) -> Sequence[bool]:
        """For each key, whether a read may succeed. A hint: the entry may be gone by then.

        A store on a network may answer from what it knows locally, or bound the call by its time.
        """

    @abstractmethod
    def write(self, key: Key, data: memoryview) -> bool:
        """Keep these bytes; True once a read would give them.

        False: refused or failed, and nothing of them is ever read. A store that is full evicts
        entries of its own, or refuses. `data` is the caller's again when the call returns.
        """

    @abstractmethod
    def read(self, key: Key, into: memoryview) -> bool:
        """Fill `into` with the entry's bytes; False: a miss, and what is in `into` is arbitrary.

        Bytes that are damaged or not as many as `into` has are a miss, and their entry is removed.
        """

    def write_many(self, keys: Sequence[Key], data: Sequence[memoryview]) -> list[bool]:
        """`write` for each of at most `at_once` keys, within the time of one call."""
        return list(map(self.write, keys, data))

    def read_many(self, keys: Sequence[Key], into: Sequence[memoryview]) -> int:
        """`read` for each of at most `at_once` keys, within the time of one call.

        Returns how many, from the first on, succeeded; what is in the other buffers is arbitrary.
        """
        return [*map(self.read, keys, into), False].index(False)

    @abstractmethod
    def remove(self, key: Key) -> None:
        """Forget an entry; nothing if there is none."""

    @abstractmethod
    def keys(self) -> Iterable[Key]:
        """The entries that this process knows of, for checks and pictures."""

    def close(self) -> None:
        """Release what the store holds. Entries of a store that outlives the process stay."""


class PricedTier(KVTier):
    """A store without bytes on a virtual clock: what its copies would take."""

    @abstractmethod
    def seconds(self, payload_bytes: int) -> float:
        """Of one copy of so many bytes, to or from it."""
