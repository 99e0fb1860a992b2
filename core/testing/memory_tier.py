"""A store in a dictionary that a test can slow down, break and look into."""

import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import make_dataclass, replace
from typing import Any

from interlock.core.capabilities import none_required
from interlock.core.component import BuildContext, Component
from interlock.core.registry import Registry
from interlock.core.tier import Key, KVTier

TIERS = ("cache/tiers", "cache/tiers/below")


class MemoryTier(KVTier):
    """Keeps payloads until `capacity` entries, then refuses. `groups` has how many were at once.

    `delay` is called before each read and write with what it is and the key, and may sleep;
    `fails` says whether the call finds the store broken.
    """

    answers_at_once = True

    def __init__(self, capacity: int = 1 << 30, at_once: int = 1) -> None:
        super().__init__()
        self.at_once = at_once
        self.groups: list[tuple[str, int]] = []
        self.entries: dict[Key, bytes] = {}
        self.capacity = capacity
        self.delay: Callable[[str, Key], None] = lambda _what, _key: None
        self.fails: Callable[[str, Key], bool] = lambda _what, _key: False
        self.calls: list[str] = []
        self.closed = False
        self._lock = threading.Lock()

    @property
    def capacity_bytes(self) -> int | None:
        """See KVTier."""
        return None

    def used_bytes(self) -> int:
        """See KVTier."""
        return sum(map(len, self.entries.values()))

    def holds(self, keys: Sequence[Key]) -> Sequence[bool]:
        """See KVTier."""
        return [key in self.entries for key in keys]

    def write(self, key: Key, data: memoryview) -> bool:
        """See KVTier."""
        if not self._sound("write", key):
            return False
        content = bytes(data)
        with self._lock:
            if key not in self.entries and len(self.entries) >= self.capacity:
                self.failures["full"] += 1
                return False
            self.entries[key] = content
        return True

    def read(self, key: Key, into: memoryview) -> bool:
        """See KVTier."""
        if not self._sound("read", key):
            return False
        with self._lock:
            content = self.entries.get(key)
            if content is None or len(content) != into.nbytes:
                self.entries.pop(key, None)
                return False
        into[:] = content
        return True

    def write_many(self, keys: Sequence[Key], data: Sequence[memoryview]) -> list[bool]:
        """See KVTier."""
        self.groups.append(("write", len(keys)))
        return super().write_many(keys, data)

    def read_many(self, keys: Sequence[Key], into: Sequence[memoryview]) -> int:
        """See KVTier."""
        self.groups.append(("read", len(keys)))
        return super().read_many(keys, into)

    def remove(self, key: Key) -> None:
        """See KVTier."""
        with self._lock:
            self.entries.pop(key, None)

    def keys(self) -> Iterable[Key]:
        """See KVTier."""
        return list(self.entries)

    def close(self) -> None:
        """See KVTier. The entries stay, as a disk's would."""
        self.closed = True

    def _sound(self, what: str, key: Key) -> bool:
        self.calls.append(what)
        self.delay(what, key)
        if self.fails(what, key):
            self.failures["broken"] += 1
            return False
        return True


def with_store(
    registry: Registry, store: KVTier, name: str = "memory", requires: Any = none_required
) -> Registry:
    """The registry, and `store` as `name` for both places of a tier; engines share it."""
    options = make_dataclass("MemoryConfig", [("name", str, name)], frozen=True)

    def build(_config: object, _context: BuildContext) -> KVTier:
        return store

    components, origins = dict(registry.components), dict(registry.origins)
    for seam in TIERS:
        components[seam, name] = Component(
            seam, name, options, build, "a test's store", requires=requires
        )
        origins[seam, name] = origins[seam, "none"]
    return replace(registry, components=components, origins=origins)
