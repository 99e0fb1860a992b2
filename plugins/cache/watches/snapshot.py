"""A warm cache that outlives its process: saved as an engine closes, loaded as one is built."""

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from interlock.core.batch import PageId, Pages
from interlock.core.cache_watch import CacheWatch
from interlock.core.capabilities import MovesPages
from interlock.core.component import CONTRACT, BuildContext
from interlock.core.engine import Engine
from interlock.core.errors import ConfigError, RunFolderError
from interlock.core.options import plain
from interlock.core.prefix_index import Inserted, PrefixKey, Units
from interlock.core.transfers import Kind, Transfer
from interlock.plugins.cache.watches import DirectoryConfig
from interlock.plugins.cache.watches.books import Books
from interlock.plugins.cache.watches.differences import differences
from interlock.plugins.cache.watches.payload_file import PayloadFile, carry, key_of
from interlock.plugins.cache.watches.restore import Restore
from interlock.plugins.cache.watches.saved_runs import as_plain, save_runs
from interlock.plugins.cache.watches.snapshot_files import (
    read_manifest,
    require_writable,
    write_snapshot,
)


class Snapshot(CacheWatch):
    """Begins a cache with the snapshot in one directory, and leaves one in another, or the same.

    Pages are saved with their rows' bytes where the executor has any, their keys, salts, and what
    eviction knows: runs with times, counts and states, and a policy's own `Books`.
    """

    def __init__(self, load: Path | None, save: Path | None) -> None:
        self._load, self._save = load, save
        self._rows: list[Units | None] = []
        self._restored = self._left_out = 0
        self._closed = False

    # CacheWatch ---------------------------------------------------------------------------------

    def attach(self, engine: Engine) -> None:
        """See CacheWatch. ConfigError: the snapshot is damaged, or of another engine."""
        self._engine, self._cache = engine, engine.core.cache
        self._rows = [None] * self._cache.pools[0].num_pages
        if self._save is not None:
            self._cache.runs.watches.append(self)
        if self._load is not None:
            manifest = read_manifest(self._load)
            self._require_same(manifest["facts"])
            restore = Restore(engine, self._load, manifest, self.has_bytes)
            self._restored, self._left_out = restore.run()

    def stored(self, key: PrefixKey, after: PageId | None, inserted: Inserted) -> None:
        """See CacheWatch: remember the rows, which an index need not keep."""
        known = len(inserted.pages) - inserted.kept
        for page, row in zip(inserted.pages[known:].tolist(), key.units[known:], strict=True):
            self._rows[page] = row.copy()

    def facts(self) -> dict[str, Any]:
        """See CacheWatch."""
        return {
            "restored_pages": self._restored,
            "left_out_pages": self._left_out,
            "indexed_pages": self._cache.index.num_pages(),
        }

    def close(self) -> None:
        """Save, unless an error is what ends the run: then the old snapshot stays."""
        if self._closed or self._save is None:
            return
        self._closed = True
        if sys.exception() is None:
            self.save(self._save)

    @property
    def has_bytes(self) -> bool:
        """Whether pages have rows, and not only keys."""
        return MovesPages() in self._engine.resolution.capabilities

    # What a snapshot depends on -----------------------------------------------------------------

    def _facts(self) -> dict[str, Any]:
        core, resolution = self._engine.core, self._engine.resolution
        config, spec = resolution.config, resolution.chosen["spec"]
        stores_drafts = core.drafts.ahead is not None
        return {
            "contract": CONTRACT,
            "cache.page_size": self._cache.page_size,
            "dtype": config.dtype if self.has_bytes else None,
            "cache.dtype": config.cache.dtype,
            "weights": config.weights,
            "numerics": config.numerics,
            "device": config.device.split(":")[0],
            "spec": [spec.key, plain(spec.config)] if stores_drafts else None,
            "layout": repr((self._cache.layout.groups, self._cache.layout.lifetimes)),
            "adapters": sorted(digest.hex() for digest in core.intake.adapters.digests),
            "model": core.intake.salt.hex(),
        }

    def _require_same(self, theirs: Mapping[str, Any]) -> None:
        """ConfigError naming everything in which the snapshot's engine was another one."""
        mine = json.loads(json.dumps(self._facts()))
        other = [name for name in mine if theirs.get(name) != mine[name]]
        if other != ["model"]:  # whose hash covers most of the others
            other = [name for name in other if name != "model"]
        where = f"cache.snapshot.load={str(self._load)!r}"
        if other:
            said = [
                line for name in other for line in differences(name, theirs.get(name), mine[name])
            ]
            raise ConfigError([f"{where}: {line}" for line in said])

    # Saving -------------------------------------------------------------------------------------

    def save(self, directory: Path) -> None:
        """Write what the index holds now; what a step is writing is not in it.

        Raises RunFolderError, naming the file, when it cannot be written.
        """
        policy = self._cache.runs.policy
        runs, pages = save_runs(self._cache.index.runs(), self._rows, policy)
        place = {page: number for number, page in enumerate(pages)}
        windows = [
            [place[anchor] for anchor in window.anchors.tolist()]
            for window in self._cache.windows.values()
        ]
        kept = {
            "runs": as_plain(runs),
            "windows": windows,
            "saved_s": self._engine.clock.now(),
            "policy": self._engine.resolution.chosen["cache/eviction"].key,
            "books": dict(policy.books()) if isinstance(policy, Books) else None,
        }
        writers = {
            "runs": lambda path: _write_bytes(path, json.dumps(kept).encode()),
            "rows": lambda path: self._write_rows(path, pages),
            "pages": lambda path: self._write_pages(path, np.array(pages, dtype=np.int32)),
        }
        facts = {"facts": self._facts(), "num_pages": len(pages), "num_runs": len(runs)}
        write_snapshot(directory, facts | {"payload_bytes": self._payload_bytes()}, writers)

    def _payload_bytes(self) -> int:
        return self._engine.executor.payload_bytes(self._cache.page_size) if self.has_bytes else 0

    def _write_rows(self, path: Path, pages: list[int]) -> None:
        with path.open("wb") as file:
            for page in pages:
                row = self._rows[page]
                assert row is not None
                file.write(row.astype("<i8").tobytes())

    def _write_pages(self, path: Path, pages: Pages) -> None:
        size = self._payload_bytes()
        if size == 0:
            _write_bytes(path, b"")
            return
        windows = self._cache.windows.values()
        tables = (pages, *(window.companion(pages) for window in windows))
        store = PayloadFile(path, size, write=True)
        try:
            transfer = Transfer(Kind.SAVE, [key_of(n) for n in range(len(pages))], tables, 0.0)
            carry(self._engine, store, transfer)
            if store.error is not None or not all(stored for (stored,) in transfer.done):
                reason = store.error.strerror if store.error else "not every page was written"
                raise RunFolderError(f"{path}: cannot be written: {reason}")
        finally:
            store.close()


def _write_bytes(path: Path, content: bytes) -> None:
    path.write_bytes(content)


def build(config: DirectoryConfig, _context: BuildContext) -> Snapshot:
    """Snapshots in the configured directories; relative ones are in the current folder.

    ConfigError: what is to be saved at the end could not be.
    """
    load, save = (
        None if one is None else Path(one).expanduser() for one in (config.load, config.save)
    )
    if save is not None:
        require_writable(save)
    return Snapshot(load, save)
