"""Pages in the memory of the CPU: one block of equal slots, the least recently used goes first."""

import contextlib
import mmap
import threading
from collections import OrderedDict
from collections.abc import Iterable, Sequence

from interlock.core.component import BuildContext
from interlock.core.tier import Key
from interlock.plugins.cache.tiers import CPUTierConfig
from interlock.plugins.cache.tiers.counted import CountedTier, copy_bytes


class CPUTier(CountedTier):
    """Slots of the size of the first payload in one anonymous mapping, which cannot fragment.

    The system gives memory for a slot when it is first written. Copies run outside the lock: a
    slot is in nobody's hands but the writer's until its bytes are complete, and a slot that is
    being read is not given to anybody else.
    """

    answers_at_once = True

    def __init__(self, capacity_bytes: int) -> None:
        super().__init__()
        self._limit_bytes = capacity_bytes
        self._lock = threading.Lock()
        self._memory = mmap.mmap(-1, capacity_bytes)
        with contextlib.suppress(AttributeError, OSError):  # fewer faults, where there are such
            self._memory.madvise(mmap.MADV_HUGEPAGE)
        self._closed = False
        self._slot_bytes = 0
        self._free: list[int] = []
        self._slots: OrderedDict[Key, int] = OrderedDict()
        self._readers: dict[int, int] = {}
        self._dropped: set[int] = set()
        """Slots that are free once their last reader is done."""

    @property
    def capacity_bytes(self) -> int:
        """See KVTier: whole slots, once the first payload told their size."""
        return self._limit_bytes - self._limit_bytes % max(1, self._slot_bytes)

    def used_bytes(self) -> int:
        """See KVTier."""
        return len(self._slots) * self._slot_bytes

    def holds(self, keys: Sequence[Key]) -> list[bool]:
        """See KVTier."""
        with self._lock:
            return [key in self._slots for key in keys]

    def write(self, key: Key, data: memoryview) -> bool:
        """See KVTier. Refused: another size than the first payload's, or every slot is in use."""
        with self._lock:
            if key in self._slots:
                self._slots.move_to_end(key)
                return True
            if not self._fits(data.nbytes):
                return self.failed("size")
            slot = self._take_slot()
            if slot is None:
                return self.failed("busy")
            memory = self._bytes_of(slot)
        copy_bytes(memory, data)
        with self._lock:
            if key in self._slots:  # another thread was faster
                self._free.append(slot)
            elif not self._closed:
                self._slots[key] = slot
        return not self._closed

    def read(self, key: Key, into: memoryview) -> bool:
        """See KVTier."""
        with self._lock:
            slot = self._slots.get(key)
            if slot is None:
                return False
            if into.nbytes != self._slot_bytes:
                self._drop(key)
                return self.failed("damaged")
            self._slots.move_to_end(key)
            self._readers[slot] = self._readers.get(slot, 0) + 1
            memory = self._bytes_of(slot)
        copy_bytes(into, memory)
        with self._lock:
            self._readers[slot] -= 1
            if not self._readers[slot]:
                del self._readers[slot]
                if slot in self._dropped:
                    self._dropped.remove(slot)
                    self._free.append(slot)
        return True

    def remove(self, key: Key) -> None:
        """See KVTier."""
        with self._lock:
            if key in self._slots:
                self._drop(key)

    def keys(self) -> Iterable[Key]:
        """See KVTier."""
        with self._lock:
            return list(self._slots)

    def close(self) -> None:
        """See KVTier."""
        with self._lock:
            self._closed = True
            self._slots.clear()
            self._free.clear()
            with contextlib.suppress(BufferError):  # a copy runs: then it goes with this object
                self._memory.close()

    def _fits(self, size: int) -> bool:
        if not self._slot_bytes and 0 < size <= self._limit_bytes:
            self._slot_bytes = size
            self._free = list(range(self._limit_bytes // size))[::-1]
        return size == self._slot_bytes

    def _take_slot(self) -> int | None:
        if self._free:
            return self._free.pop()
        for key, slot in self._slots.items():
            if slot not in self._readers:
                del self._slots[key]
                return slot
        return None

    def _drop(self, key: Key) -> None:
        slot = self._slots.pop(key)
        if slot in self._readers:
            self._dropped.add(slot)
        else:
            self._free.append(slot)

    def _bytes_of(self, slot: int) -> memoryview:
        start = slot * self._slot_bytes
        return memoryview(self._memory)[start : start + self._slot_bytes]


def build(config: CPUTierConfig, _context: BuildContext) -> CPUTier:
    """The store of a configuration."""
    return CPUTier(config.capacity_mib << 20)
