"""Payloads of pages one after the other in a file, as a tier: transfers fill and read it."""

import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from interlock.core.engine import Engine
from interlock.core.tier import KEY_BYTES, Key, KVTier
from interlock.core.transfers import Transfer

LONG_S = 1e9
"""A snapshot's copies have no deadline."""


def key_of(place: int) -> Key:
    """The key of the payload at a place."""
    return place.to_bytes(KEY_BYTES, "big")


class PayloadFile(KVTier):
    """Payload n, of key `key_of(n)`, is at n times its size. `error` is what the system refused."""

    answers_at_once = False

    def __init__(self, path: Path, payload_bytes: int, write: bool) -> None:
        """OSError when the file cannot be opened."""
        super().__init__()
        flags = os.O_RDWR | os.O_CREAT | os.O_TRUNC if write else os.O_RDONLY
        self._descriptor = os.open(path, flags, 0o644)
        self._size = payload_bytes
        self.error: OSError | None = None

    @property
    def capacity_bytes(self) -> int | None:
        """See KVTier."""
        return None

    def used_bytes(self) -> int:
        """See KVTier."""
        return os.fstat(self._descriptor).st_size

    def holds(self, keys: Sequence[Key]) -> Sequence[bool]:
        """See KVTier."""
        end = self.used_bytes() // self._size
        return [int.from_bytes(key, "big") < end for key in keys]

    def write(self, key: Key, data: memoryview) -> bool:
        """See KVTier."""
        try:
            written = os.pwrite(self._descriptor, data, int.from_bytes(key, "big") * self._size)
        except OSError as error:
            self.error = error
            return False
        return written == len(data)

    def read(self, key: Key, into: memoryview) -> bool:
        """See KVTier."""
        try:
            count = os.preadv(self._descriptor, [into], int.from_bytes(key, "big") * self._size)
        except OSError as error:
            self.error = error
            return False
        return count == len(into)

    def remove(self, key: Key) -> None:
        """Nothing: a snapshot is written once."""

    def keys(self) -> Iterable[Key]:
        """See KVTier."""
        return map(key_of, range(self.used_bytes() // self._size))

    def close(self) -> None:
        """See KVTier."""
        os.close(self._descriptor)


def carry(engine: Engine, store: PayloadFile, transfer: Transfer) -> None:
    """Run one transfer to its end. Nothing else is under way on its pages."""
    clock = engine.clock
    transfers = engine.executor.transfers([store], engine.core.cache.page_size)
    transfer.until_s = clock.now() + LONG_S
    if transfer.keys:
        transfers.start(transfer, clock.now())
        while not transfers.finished(clock.now()):
            transfers.wait(clock, transfer.until_s)
    transfers.close(LONG_S)
