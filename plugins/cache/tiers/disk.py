"""Pages in files of a local folder: checksummed, safe against crashes, within a limit of bytes."""

import contextlib
import errno
import itertools
import os
import threading
from collections.abc import Iterable, Sequence
from typing import TypeVar

from interlock.core.component import BuildContext
from interlock.core.tier import Key
from interlock.plugins.cache.tiers import DiskTierConfig
from interlock.plugins.cache.tiers.counted import copy_bytes
from interlock.plugins.cache.tiers.deadline import Pause, Workers
from interlock.plugins.cache.tiers.disk_files import (
    FULL,
    SUFFIX,
    TierFolder,
    filled,
    is_at,
    take_over,
    write_file,
)
from interlock.plugins.cache.tiers.envelope import HEADER, Envelope, space_of
from interlock.plugins.cache.tiers.lru_bytes import LRUBytes
from interlock.plugins.cache.tiers.parallel import Begun, ParallelTier

REASONS = {
    **dict.fromkeys(FULL, "full"),
    **dict.fromkeys((errno.EACCES, errno.EPERM, errno.EROFS), "permission"),
    errno.ENOENT: "gone", errno.EFBIG: "size",
}  # fmt: skip
"""Every other error of the system is counted as "io"."""

T = TypeVar("T")


class _DamagedError(Exception):
    """A file that does not hold what was written."""


class DiskTier(ParallelTier):
    """One file an entry: written beside its place, then renamed into it.

    Where the store is full the file of the entry that goes is renamed and written over, which is
    several times as fast as deleting it and making another. A crash leaves no entry, a whole one,
    or (without `sync`, when the machine loses power) a damaged one, which its checksum tells. What
    other models and versions left in the folder counts as used, goes when it is unused for longest,
    and is never read.
    """

    answers_at_once = True

    def __init__(self, folder: TierFolder, config: DiskTierConfig, timeout_s: float) -> None:
        """`folder` is closed with the store; no call takes longer than `timeout_s`."""
        super().__init__(
            Workers(config.threads, timeout_s, "disk-tier"), Pause(config.retry_s)
        )  # fmt: skip
        self._folder, self._sync = folder, config.sync
        self._envelope = Envelope(config.checksum)
        self._scratch = threading.local()
        self._numbers = itertools.count()
        self._entries: LRUBytes[Key | str] = LRUBytes(config.capacity_mib << 20)
        """By key, or by path where this store cannot or must not read it."""
        found = folder.found()
        others = [entry.payload_bytes for entry in found if entry.key is None]
        self.leftovers, self.leftover_bytes = len(others), sum(others)
        """Entries of other models and versions that were there at the start."""
        self._entries.adopt((entry.key or entry.path, entry.payload_bytes) for entry in found)
        with contextlib.suppress(OSError):
            self._delete(self._entries.release(self.used_bytes() - self.capacity_bytes))

    @property
    def capacity_bytes(self) -> int:
        """See KVTier. Each file has a header of 68 bytes besides."""
        return self._entries.capacity_bytes

    def used_bytes(self) -> int:
        """See KVTier: what other models and versions left included."""
        return self._entries.stored_bytes

    def holds(self, keys: Sequence[Key]) -> list[bool]:
        """See KVTier: from memory."""
        return self._entries.has(keys)

    def begin_write(self, key: Key, data: memoryview) -> Begun:
        """See ParallelTier. An entry that is there is not written again."""
        if self._entries.touch(key):
            return lambda _timeout_s: True
        if not self._pause.may_call():
            return self.refused("paused")
        data = data.cast("B")
        size, path = data.nbytes, self._folder.path_of(key)
        header = self._envelope.seal(key, data)  # while the bytes surely are the caller's
        if (victims := self._entries.reserve(size)) is None:
            return self.refused("size" if size > self.capacity_bytes else "busy")
        place = f"{path.removesuffix(SUFFIX)}.{next(self._numbers)}.tmp"

        def fetch() -> None:
            nonlocal place
            over = bool(victims) and self._take_over(victims, place, size)
            self._delete(victims)
            self._fill(place, header, data, over=over)
            os.rename(place, path)
            place = path

        def deliver(_: None) -> None:
            self._entries.forget(path)
            self._entries.commit(key, size)

        def undo() -> None:
            self._entries.cancel(size)
            with contextlib.suppress(OSError):
                self._delete(victims)
            with contextlib.suppress(OSError):
                os.unlink(place)

        return self.begin(fetch, deliver, undo)

    def begin_read(self, key: Key, into: memoryview) -> Begun:
        """See ParallelTier."""
        if not self._entries.touch(key):
            return lambda _timeout_s: False
        if not self._pause.may_call():
            return self.refused("paused")
        size, path = into.nbytes, self._folder.path_of(key)

        def fetch() -> memoryview:
            try:
                payload = self._payload(path, key, size)
            except FileNotFoundError:
                self._forget(key, path)  # its file too, if a write has just brought it back
                raise
            except OSError:
                self._entries.rename(key, path)
                raise
            if payload is None:
                self._forget(key, path)
                raise _DamagedError
            return payload

        return self.begin(fetch, lambda payload: copy_bytes(into, payload))

    def remove(self, key: Key) -> None:
        """See KVTier. The key is forgotten even if its file cannot be deleted."""
        path = self._folder.path_of(key)
        size = self._entries.rename(key, path)  # from here on bytes that nobody reads
        if size is not None and self._pause.may_call():
            self.wait(self.begin(lambda: self._delete([(path, size)])))

    def keys(self) -> Iterable[Key]:
        """See KVTier."""
        return [entry for entry in self._entries.ids() if isinstance(entry, bytes)]

    def close(self) -> None:
        """See KVTier."""
        super().close()
        self._folder.close()

    def reason_of(self, error: Exception) -> tuple[str, bool] | None:
        """See ParallelTier."""
        if isinstance(error, _DamagedError):
            return "damaged", False
        if isinstance(error, OSError):
            return REASONS.get(error.errno or 0, "io"), False
        return None

    def _take_over(self, victims: list[tuple[Key | str, int]], place: str, size: int) -> bool:
        """Give the file of the last victim, if it is of this size, its new name."""
        victim, victim_size = victims[-1]
        path = victim if isinstance(victim, str) else self._folder.path_of(victim)
        if victim_size != size or not take_over(path, place, HEADER.size + size):
            return False
        self._entries.forget(path)
        victims.pop()
        return True

    def _fill(self, temporary: str, header: bytes, data: memoryview, *, over: bool) -> None:
        """Write a file, over an old one of its size or a new one.

        Once each, make its folder, and make room if others filled the disk.
        """
        repairs = {errno.ENOENT: self._make_folder, **dict.fromkeys(FULL, self._make_room)}
        while True:
            try:
                return write_file(temporary, header, data, over=over, sync=self._sync)
            except OSError as error:
                over = False
                repair = repairs.pop(error.errno or 0, None)
                if repair is None or not repair(temporary, data.nbytes):
                    raise

    def _make_folder(self, path: str, _size: int) -> bool:
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        return True

    def _make_room(self, _path: str, size: int) -> bool:
        room = self._entries.release(size)
        some = bool(room)
        self._delete(room)
        return some

    def _payload(self, path: str, key: Key, size: int) -> memoryview | None:
        """The entry's bytes, in this thread's buffer; None if they are not what was written."""
        whole = self._buffer(HEADER.size + size)
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            about = os.fstat(file)
            complete = about.st_size == len(whole) and filled(file, whole)
            if complete:
                with contextlib.suppress(OSError):
                    os.utime(file)  # the order of use outlives the process
        finally:
            os.close(file)
        header, payload = whole[: HEADER.size], whole[HEADER.size :]
        if complete and self._envelope.opens(header, key, payload):
            return payload
        if not is_at(about, path):  # it went while it was read, and is written over
            raise FileNotFoundError(errno.ENOENT, "evicted", path)
        return None

    def _buffer(self, size: int) -> memoryview:
        buffer: memoryview | None = getattr(self._scratch, "buffer", None)
        if buffer is None or len(buffer) < size:
            buffer = self._scratch.buffer = memoryview(bytearray(size))
        return buffer[:size]

    def _forget(self, key: Key, path: str) -> None:
        """Delete an entry. Where that fails its bytes still count, but it is no entry any more."""
        if (size := self._entries.rename(key, path)) is not None:
            self._delete([(path, size)])

    def _delete(self, entries: list[tuple[Key | str, int]]) -> None:
        """Delete files; the list keeps those that were not tried because one could not be."""
        while entries:
            entry, size = entries.pop()
            path = entry if isinstance(entry, str) else self._folder.path_of(entry)
            try:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(path)
            except OSError:
                self._entries.adopt([(path, size)])
                raise
            self._entries.forget(path)


def build(config: DiskTierConfig, context: BuildContext) -> DiskTier:
    """The store of a configuration; its folder is this process's until it is closed."""
    folder = TierFolder(config.directory, space_of(context))
    return DiskTier(folder, config, context.load_timeout_s)
