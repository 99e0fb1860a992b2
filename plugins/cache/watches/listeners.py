"""Where a stream of events goes: a file, or a list for Python."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

from interlock.core.component import BuildContext
from interlock.core.engine import Engine
from interlock.core.errors import ConfigError, RunFolderError
from interlock.plugins.cache.watches import JSONLConfig, MemoryConfig
from interlock.plugins.cache.watches.messages import Batch
from interlock.plugins.cache.watches.stream import KVEvents


class MemoryEvents(KVEvents):
    """Keeps batches until they are taken."""

    def __init__(self, secret: bytes | None = None) -> None:
        super().__init__(secret)
        self._kept: list[Batch] = []
        self.subscribe(self._kept.append)

    def take(self) -> list[Batch]:
        """The batches since the last call."""
        taken = self._kept[:]
        self._kept.clear()
        return taken

    def __iter__(self) -> Iterator[Batch]:
        """Those that were not taken, each once; ends when there is none: ask again after a step."""
        while self._kept:
            yield self._kept.pop(0)


class FileEvents(KVEvents):
    """Writes the header and then each batch as a line, whole lines at a time."""

    def __init__(self, path: Path) -> None:
        """ConfigError when the file cannot be written."""
        super().__init__()
        self._path = path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file: TextIO = path.open("w", encoding="utf-8")
        except OSError as error:
            raise ConfigError(f"cache.events.path={str(path)!r}: {error.strerror}") from error
        self.subscribe(lambda batch: self._write(batch.line()))

    def attach(self, engine: Engine) -> None:
        """See CacheWatch."""
        super().attach(engine)
        self._write(self.header())

    def _write(self, line: dict[str, Any]) -> None:
        try:
            self._file.write(json.dumps(line, separators=(",", ":")) + "\n")
            self._file.flush()
        except OSError as error:
            raise RunFolderError(f"{self._path}: cannot be written: {error.strerror}") from error

    def close(self) -> None:
        """See CacheWatch."""
        super().close()
        self._file.close()


def build_none(_config: object, _context: BuildContext) -> None:
    """Nobody."""


def build_memory(_config: MemoryConfig, _context: BuildContext) -> MemoryEvents:
    """A stream that keeps its batches."""
    return MemoryEvents()


def build_jsonl(config: JSONLConfig, context: BuildContext) -> FileEvents:
    """A stream into the configured file, which is emptied."""
    if config.path is None:
        return FileEvents(context.folder / "kv_events.jsonl")
    return FileEvents(Path(config.path).expanduser())
