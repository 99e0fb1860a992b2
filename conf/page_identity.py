"""What rows of the cache depend on beside tokens, adapter and tenant: the root of keys in tiers.

Pages in a tier may outlive the process and be read by another one, so their keys begin with the
contents of every file that rows come from, not with where they lie.
"""

import hashlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from interlock.core.cache_spec import CacheLayout
from interlock.core.model_files import ModelFiles, ModelFormat
from interlock.core.options import plain


class NotingFormat(ModelFormat):
    """A format that notes in `opened` which models it opened."""

    def __init__(self, form: ModelFormat, opened: list[ModelFiles]) -> None:
        self._form, self._opened = form, opened
        self.name, self.models = form.name, form.models

    def open(self, path: Path) -> ModelFiles | None:
        """See ModelFormat."""
        files = self._form.open(path)
        if files is not None:
            self._opened.append(files)
        return files

    def named(self, model: str) -> ModelFiles:
        """See ModelFormat."""
        files = self._form.named(model)
        self._opened.append(files)
        return files


def page_identity(files: Iterable[ModelFiles], layout: CacheLayout, facts: Any) -> bytes:
    """A hash of the files' contents, of what a page stores, and of plain `facts`.

    Reads every file once: about a second for a gigabyte.
    """
    digest = hashlib.blake2b(digest_size=32)
    for one in files:
        for path in one.stored():
            with path.open("rb") as stored:
                content = hashlib.file_digest(stored, "blake2b").digest()
            digest.update(f"{path.name}\0".encode() + content)
    digest.update(repr((layout.groups, layout.lifetimes, plain(facts))).encode())
    return digest.digest()
