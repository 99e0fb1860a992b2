"""What stores on a server share: sealed payloads, bounded calls, a pause after a lost server."""

import threading
from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from interlock.core.tier import Key
from interlock.plugins.cache.tiers.counted import copy_bytes
from interlock.plugins.cache.tiers.deadline import Pause, Workers
from interlock.plugins.cache.tiers.envelope import FORMAT, HEADER, Envelope
from interlock.plugins.cache.tiers.parallel import Begun, ParallelTier

T = TypeVar("T")


class ServerError(Exception):
    """Why a server did not do what it was asked.

    `reason` is counted; `lost`: there is no use in asking again at once.
    """

    def __init__(self, reason: str, *, lost: bool) -> None:
        super().__init__(reason)
        self.reason, self.lost = reason, lost


class NetworkTier(ParallelTier):
    """A store whose entries are on a server, which several engines may share.

    Subclasses speak to the server, in a worker thread: they raise ServerError, and nothing else,
    when it does not do as asked. A server that hangs or is gone is left alone for `retry_s`, in
    which every call says no at once.
    """

    def __init__(self, space: str, envelope: Envelope, workers: Workers, pause: Pause) -> None:
        """`workers` end with the store."""
        super().__init__(workers, pause)
        self._prefix = f"interlock-kv{FORMAT}:{space}:"
        self._envelope = envelope
        self._knowing = threading.Lock()
        self._known: dict[Key, int] = {}
        self._known_bytes = 0

    @abstractmethod
    def ask(self, names: Sequence[str]) -> list[bool]:
        """Which of these entries the server has."""

    @abstractmethod
    def put(self, name: str, header: bytes, data: memoryview) -> None:
        """Store an entry: the header's bytes, then the data's."""

    @abstractmethod
    def get(self, name: str, size: int) -> memoryview | None:
        """An entry's bytes, as many as there are; None without such an entry.

        `size` is how many are wanted: with another number it matters only that it is another.
        """

    @abstractmethod
    def delete(self, name: str) -> None:
        """Remove an entry, if there is one."""

    @property
    def capacity_bytes(self) -> int | None:
        """See KVTier: the server has its own limit."""
        return None

    def used_bytes(self) -> int:
        """See KVTier: the entries in `keys`."""
        return self._known_bytes

    def holds(self, keys: Sequence[Key]) -> list[bool]:
        """See KVTier: asks the server."""
        found: list[bool] = []
        asked = self._ask(lambda: self.ask([self._name(key) for key in keys]), found.extend)
        if not self.wait(asked):
            return [False] * len(keys)
        for key, there in zip(keys, found, strict=True):
            if not there:
                self._know(key, None)
        return found

    def begin_write(self, key: Key, data: memoryview) -> Begun:
        """See ParallelTier."""
        data = data.cast("B")
        header, name = self._envelope.seal(key, data), self._name(key)
        return self._ask(
            lambda: self.put(name, header, data), lambda _: self._know(key, data.nbytes)
        )

    def begin_read(self, key: Key, into: memoryview) -> Begun:
        """See ParallelTier."""
        name, size = self._name(key), into.nbytes

        def fetch() -> memoryview | None:
            whole = self.get(name, HEADER.size + size)
            if whole is None:
                if key in self._known:  # the server evicted it, or somebody else removed it
                    raise ServerError("gone", lost=False)
                return None
            header, payload = whole[: HEADER.size], whole[HEADER.size :]
            if payload.nbytes != size or not self._envelope.opens(header, key, payload):
                self.delete(name)
                raise ServerError("damaged", lost=False)
            return payload

        there = False

        def deliver(payload: memoryview | None) -> None:
            nonlocal there
            if payload is not None:
                copy_bytes(into, payload)
                there = True

        asked = self._ask(fetch, deliver)

        def found(timeout_s: float) -> bool:
            if asked(timeout_s) and there:
                return True
            self._know(key, None)
            return False

        return found

    def remove(self, key: Key) -> None:
        """See KVTier."""
        self.wait(self._ask(lambda: self.delete(self._name(key))))
        self._know(key, None)

    def keys(self) -> Iterable[Key]:
        """See KVTier: what this process wrote and has not found missing."""
        with self._knowing:
            return list(self._known)

    def reason_of(self, error: Exception) -> tuple[str, bool] | None:
        """See ParallelTier."""
        return (error.reason, error.lost) if isinstance(error, ServerError) else None

    def _name(self, key: Key) -> str:
        return self._prefix + key.hex()

    def _know(self, key: Key, size: int | None) -> None:
        with self._knowing:
            self._known_bytes += (size or 0) - self._known.pop(key, 0)
            if size is not None:
                self._known[key] = size

    def _ask(self, fetch: Callable[[], T], deliver: Callable[[T], None] = lambda _: None) -> Begun:
        """Begin a call, unless the server is left alone now."""
        if not self._pause.may_call():
            return self.refused("paused")
        return self.begin(fetch, deliver)
