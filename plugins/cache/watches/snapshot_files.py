"""A snapshot's directory: checksummed files behind a manifest that replaces the old one at once.

Files have names of their own in every snapshot; the manifest, renamed last, says which belong to
it. Whoever is killed before that leaves the old snapshot whole.
"""

import hashlib
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from interlock.core.errors import ConfigError, RunFolderError

MANIFEST = "manifest.json"
FORMAT = 1
PARTS = ("runs", "rows", "pages")


def read_manifest(directory: Path) -> dict[str, Any]:
    """What a snapshot says of itself, checked against its own checksum.

    Raises ConfigError, naming the file and what is wrong with it.
    """
    path = directory / MANIFEST
    try:
        manifest = json.loads(path.read_bytes())
        stated = manifest.pop("sha256")
    except OSError as error:
        raise ConfigError(
            f"cache.snapshot.load={str(directory)!r}: {path.name}: {error.strerror}; "
            "cache.snapshot.save=DIR writes a snapshot"
        ) from error
    except (ValueError, KeyError, AttributeError, TypeError) as error:
        why = f"it is no JSON ({error})" if isinstance(error, ValueError) else "it has no checksum"
        raise ConfigError(f"{path}: damaged, or no snapshot's manifest: {why}") from error
    if stated != _digest_of(manifest):
        raise ConfigError(f"{path}: damaged: its content has another checksum")
    if manifest["format"] != FORMAT:
        raise ConfigError(
            f"{path}: a snapshot of format {manifest['format']}; this Interlock reads {FORMAT}"
        )
    return dict(manifest)


def checked(directory: Path, manifest: Mapping[str, Any], part: str) -> Path:
    """The path of a file of a snapshot, read once from end to end.

    Raises ConfigError, naming the file, when it is gone, short, long, or has a flipped bit.
    """
    entry = manifest["files"][part]
    path = directory / str(entry["name"])
    try:
        size = path.stat().st_size
        if size != entry["bytes"]:
            raise ConfigError(f"{path}: damaged: {size} bytes, where {entry['bytes']} were written")
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error
    if digest != entry["sha256"]:
        raise ConfigError(f"{path}: damaged: its content has another checksum")
    return path


def require_writable(directory: Path) -> None:
    """ConfigError if no snapshot could be written there. Nothing is created yet."""
    where = f"cache.snapshot.save={str(directory)!r}"
    try:
        there = next(p for p in (directory, *directory.absolute().parents) if _is_there(p))
        is_directory = there.is_dir()
    except (OSError, ValueError) as error:  # a name that is too long, or has a null byte
        raise ConfigError(f"{where}: {getattr(error, 'strerror', None) or error}") from error
    if not is_directory:
        raise ConfigError(f"{where}: {there} is no directory; give one that is there, or a new one")
    if not os.access(there, os.W_OK | os.X_OK):
        raise ConfigError(f"{where}: {there} cannot be written; give another directory")


def _is_there(path: Path) -> bool:
    try:
        path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


def write_snapshot(
    directory: Path, facts: Mapping[str, Any], writers: Mapping[str, Callable[[Path], None]]
) -> None:
    """Write the parts, each by the callable that is given its path, then the manifest.

    Raises RunFolderError, naming the file; the old snapshot is as it was then.
    """
    written: list[Path] = []
    try:
        directory.mkdir(parents=True, exist_ok=True)
        names = {part: f"{part}-{_next(directory):06d}-{os.getpid()}.bin" for part in writers}
        written += [directory / name for name in names.values()]
        files = {part: _write(directory / names[part], writers[part]) for part in writers}
        manifest = {"format": FORMAT, **facts, "files": files}
        manifest["sha256"] = _digest_of(manifest)
        temporary = directory / f".{MANIFEST}.{os.getpid()}.tmp"
        written.append(temporary)
        with temporary.open("w", encoding="utf-8") as file:
            json.dump(manifest, file, indent=1)
            _sync(file.fileno())
        os.replace(temporary, directory / MANIFEST)
    except (OSError, RunFolderError) as error:
        for path in written:
            path.unlink(missing_ok=True)
        if isinstance(error, RunFolderError):
            raise
        where = error.filename or directory
        raise RunFolderError(f"{where}: cannot be written: {error.strerror or error}") from error
    _sync_directory(directory)
    for path in directory.iterdir():
        if path.name.split("-")[0] in PARTS and path.name not in names.values():
            path.unlink(missing_ok=True)


def _write(path: Path, writer: Callable[[Path], None]) -> dict[str, Any]:
    writer(path)
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        _sync(file.fileno())
    return {"name": path.name, "bytes": path.stat().st_size, "sha256": digest}


def _next(directory: Path) -> int:
    """One more than any file there has."""
    names = [path.name.split("-") for path in directory.glob("*-*.bin")]
    return 1 + max((int(parts[1]) for parts in names if parts[1].isdigit()), default=0)


def _digest_of(manifest: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()


def _sync(descriptor: int) -> None:
    os.fsync(descriptor)


def _sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
