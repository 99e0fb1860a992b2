"""The folder of the disk tier: whose files are whose, and one process at a time.

    DIRECTORY/lock                        held while a process uses the folder
    DIRECTORY/SPACE/ab/cdef....kv1        an entry: its key in hex, two digits of it as a folder
    DIRECTORY/SPACE/ab/cdef....7.tmp      an entry that is being written

SPACE is 16 hex digits that stand for the model and how its rows are stored; 1 is the version of the
format. Anything else in the folder is somebody else's: never touched and not counted.
"""

import contextlib
import errno
import fcntl
import os
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from interlock.core.errors import ConfigError
from interlock.core.tier import Key
from interlock.plugins.cache.tiers.envelope import FORMAT, HEADER

SUFFIX = f".kv{FORMAT}"
FULL = (errno.ENOSPC, errno.EDQUOT)
"""How the system says that no space is left: for anybody, or for this user."""
_SPACE, _SHARD = re.compile(r"[0-9a-f]{16}"), re.compile(r"[0-9a-f]{2}")
_ENTRY, _UNFINISHED = re.compile(r"([0-9a-f]{62})\.kv(\d+)"), re.compile(r"[0-9a-f]{62}\.\d+\.tmp")


@dataclass(frozen=True)
class FoundEntry:
    """A file of this store's naming. `key` is None if another model or version wrote it."""

    path: str
    key: Key | None
    payload_bytes: int
    modified_ns: int


class TierFolder:
    """Names of entries, and what was found in the folder when it was opened."""

    def __init__(self, directory: str, space: str) -> None:
        """Create the folder if needed and take it for this process.

        Raises ConfigError when that cannot be, or another process has it.
        """
        self.root = Path(directory).expanduser().absolute()
        self._entries = str(self.root / space)
        self._space = space
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            self._lock = os.open(self.root / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            os.makedirs(self._entries, mode=0o700, exist_ok=True)
        except OSError as error:
            raise ConfigError(_unusable(directory, error)) from error
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            owner = os.read(self._lock, 20).decode("ascii", "replace").strip() or "unknown"
            os.close(self._lock)
            raise ConfigError(
                f"directory={directory} of the disk tier is in use by process {owner}: give each "
                "process a folder of its own"
            ) from error
        try:
            os.truncate(self._lock, 0)
            os.pwrite(self._lock, f"{os.getpid()}\n".encode(), 0)
        except OSError as error:
            os.close(self._lock)
            raise ConfigError(_unusable(directory, error)) from error

    def path_of(self, key: Key) -> str:
        """Where an entry of this model is."""
        digits = key.hex()
        return f"{self._entries}/{digits[:2]}/{digits[2:]}{SUFFIX}"

    def found(self) -> list[FoundEntry]:
        """Every entry of any model and version, oldest first; unfinished ones are deleted."""
        entries = []
        for space in _folders(self.root, _SPACE):
            for shard in _folders(space, _SHARD):
                for file in _files(shard):
                    if _UNFINISHED.fullmatch(file.name):
                        with contextlib.suppress(OSError):
                            os.unlink(file)
                    elif name := _ENTRY.fullmatch(file.name):
                        entries.append(self._entry(space, shard, file, name))
        return sorted(entries, key=lambda entry: (entry.modified_ns, entry.path))

    def close(self) -> None:
        """Let another process have the folder."""
        os.close(self._lock)

    def _entry(
        self, space: Path, shard: Path, file: "os.DirEntry[str]", name: "re.Match[str]"
    ) -> FoundEntry:
        about = file.stat(follow_symlinks=False)
        ours = space.name == self._space and int(name[2]) == FORMAT
        key = bytes.fromhex(shard.name + name[1]) if ours else None
        size = max(0, about.st_size - HEADER.size)
        return FoundEntry(file.path, key, size, about.st_mtime_ns)


def _unusable(directory: str, error: OSError) -> str:
    needed = (
        "free some there, or give it a folder on another disk"
        if error.errno in FULL
        else "it must be a folder that this user may write"
    )
    return f"directory={directory} of the disk tier cannot be used: {error.strerror}; {needed}"


def write_file(path: str, header: bytes, data: memoryview, *, over: bool, sync: bool) -> None:
    """Write a file of these bytes; `over` one that has as many (see `take_over`), or anew."""
    anew = 0 if over else os.O_TRUNC
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | anew, 0o600)
    try:
        written = os.writev(file, [header, data])
        while written < len(header) + data.nbytes:  # more than the system writes at once
            written += os.write(file, data[written - len(header) :])
        if sync:
            os.fdatasync(file)
    finally:
        os.close(file)


def take_over(path: str, to: str, size: int) -> bool:
    """Rename a file of `size` bytes that may be written over; False if it is none."""
    try:
        about = os.lstat(path)
        if not stat.S_ISREG(about.st_mode) or about.st_nlink != 1 or about.st_size != size:
            return False
        os.rename(path, to)
    except OSError:
        return False
    return True


def is_at(about: os.stat_result, path: str) -> bool:
    """Whether a path leads to this file."""
    try:
        return os.path.samestat(about, os.lstat(path))
    except FileNotFoundError:
        return False


def filled(file: int, buffer: memoryview) -> bool:
    """Read until the buffer is full; False if the file ends before."""
    have = 0
    while have < len(buffer):
        got = os.readv(file, [buffer[have:]])
        if got == 0:
            return False
        have += got
    return True


def _folders(parent: Path, name: "re.Pattern[str]") -> Iterator[Path]:
    with contextlib.suppress(OSError), os.scandir(parent) as found:
        for item in found:
            if name.fullmatch(item.name) and item.is_dir(follow_symlinks=False):
                yield Path(item.path)


def _files(parent: Path) -> "Iterator[os.DirEntry[str]]":
    with contextlib.suppress(OSError), os.scandir(parent) as found:
        for item in found:
            if item.is_file(follow_symlinks=False):
                yield item
