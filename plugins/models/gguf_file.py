"""The layout of a GGUF file: metadata and tensor table, checked before a tensor is read.

Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md, versions 2 and 3, little-endian.
"""

import mmap
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from interlock.core.errors import CheckpointError

if TYPE_CHECKING:
    from types import ModuleType

MAGIC = b"GGUF"
VERSIONS = (2, 3)
ALIGNMENT = 32
SCALARS = "B b H h I i f ? - - Q q d".split()
"""struct's code of each value type, by its number in the file."""
TEXT, ARRAY = 8, 9
MAX_AXES = 4


class StoredTensor(NamedTuple):
    """Where a tensor lies: its type's number, shape (rows first), and bytes in the file."""

    kind: int
    shape: tuple[int, ...]
    offset: int
    num_bytes: int


@dataclass(frozen=True)
class GGUFFile:
    """What the head of a file says."""

    path: Path
    metadata: Mapping[str, Any]
    tensors: Mapping[str, StoredTensor]
    data_start: int


def gguf_package() -> "ModuleType":
    """The gguf package. CheckpointError names the extra that installs it."""
    try:
        import gguf
    except ImportError as error:
        raise CheckpointError(
            f"GGUF files are read with the package gguf, which cannot be imported ({error}); "
            "pip install interlock[gguf]"
        ) from error
    return gguf


def read_gguf(path: Path) -> GGUFFile:
    """Metadata and tensor table of the file.

    Raises CheckpointError, naming the file, for what is no GGUF file of a supported version, is
    truncated or corrupt, holds a tensor type that nobody knows, or is one part of a split model.
    """
    sizes = _block_sizes()
    try:
        with path.open("rb") as opened:
            found = opened.read(len(MAGIC))
            if found != MAGIC:
                raise ValueError(f"it starts with {found!r}, not with {MAGIC!r}")
            with mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as data:
                file = _read(path, data, sizes)
    except (OSError, ValueError, struct.error) as error:
        raise CheckpointError(f"{path}: not a whole GGUF file: {error}") from error
    parts = file.metadata.get("split.count", 0)
    if isinstance(parts, int) and parts > 1:
        raise CheckpointError(
            f"{path}: part of a model split into {parts} files (split.no="
            f"{file.metadata.get('split.no')}), which is not read; join them with "
            "`llama-gguf-split --merge`"
        )
    return file


class _Cursor:
    """Reads values one after the other; ValueError or struct.error where the bytes end."""

    def __init__(self, data: mmap.mmap) -> None:
        self.data, self.at = data, len(MAGIC)

    def take(self, form: str) -> tuple[Any, ...]:
        """Values of struct's codes."""
        values = struct.unpack_from(f"<{form}", self.data, self.at)
        self.at += struct.calcsize(f"<{form}")
        return values

    def text(self) -> str:
        """A length and that many bytes of UTF-8."""
        (length,) = self.take("Q")
        first, self.at = self.at, self.at + self._fitting(length, 1)
        return self.data[first : self.at].decode("utf-8")

    def value(self) -> Any:
        """A metadata value, after the number of its type."""
        (kind,) = self.take("I")
        if kind == TEXT:
            return self.text()
        if kind != ARRAY:
            return self.take(_code(kind))[0]
        item, count = self.take("IQ")
        if item == TEXT:
            return [self.text() for _ in range(self._fitting(count, 8))]
        code = _code(item)
        return list(self.take(f"{self._fitting(count, struct.calcsize(code))}{code}"))

    def _fitting(self, count: int, item_bytes: int) -> int:
        left = len(self.data) - self.at
        if count * item_bytes > left:
            raise ValueError(f"{count} items at byte {self.at} do not fit in the {left} left")
        return int(count)


def _code(kind: int) -> str:
    code = SCALARS[kind] if kind < len(SCALARS) else "-"
    if code == "-":
        raise ValueError(f"metadata value of type {kind}")
    return code


def _read(path: Path, data: mmap.mmap, sizes: Mapping[int, tuple[int, int]]) -> GGUFFile:
    cursor = _Cursor(data)
    (version,) = cursor.take("I")
    if version not in VERSIONS:
        swapped = int.from_bytes(version.to_bytes(4, "big"), "little")
        order = "big-endian, " if swapped in VERSIONS else ""
        raise ValueError(f"{order}version {version if not order else swapped} is not read")
    num_tensors, num_values = cursor.take("QQ")
    metadata: dict[str, Any] = {}
    for _ in range(num_values):
        key = cursor.text()
        if key in metadata:
            raise ValueError(f"metadata {key!r} is given twice")
        metadata[key] = cursor.value()
    table: dict[str, tuple[int, tuple[int, ...], int]] = {}
    for _ in range(num_tensors):
        name = cursor.text()
        if name in table:
            raise ValueError(f"tensor {name!r} is given twice")
        table[name] = _entry(cursor, name)
    alignment = metadata.get("general.alignment", ALIGNMENT)
    if not isinstance(alignment, int) or alignment < 1:
        raise ValueError(f"general.alignment={alignment!r}")
    start = -(-cursor.at // alignment) * alignment
    tensors = {
        name: _placed(name, *entry, start=start, size=len(data), sizes=sizes)
        for name, entry in table.items()
    }
    return GGUFFile(path, metadata, tensors, start)


def _entry(cursor: _Cursor, name: str) -> tuple[int, tuple[int, ...], int]:
    (axes,) = cursor.take("I")
    if not 1 <= axes <= MAX_AXES:
        raise ValueError(f"tensor {name!r} has {axes} axes")
    shape = cursor.take(f"{axes}Q")[::-1]  # the file's order is columns first
    kind, offset = cursor.take("IQ")
    return kind, shape, offset


def _placed(
    name: str,
    kind: int,
    shape: tuple[int, ...],
    offset: int,
    *,
    start: int,
    size: int,
    sizes: Mapping[int, tuple[int, int]],
) -> StoredTensor:
    if kind not in sizes:
        raise ValueError(f"tensor {name!r} is of type {kind}, which the package gguf does not know")
    block, block_bytes = sizes[kind]
    if shape[-1] % block:
        raise ValueError(f"tensor {name!r} {list(shape)} has rows of no whole blocks of {block}")
    num_bytes = prod(shape) // block * block_bytes
    end = start + offset + num_bytes
    if end > size:
        raise ValueError(f"truncated: tensor {name!r} ends at byte {end}, the file at {size}")
    return StoredTensor(kind, shape, start + offset, num_bytes)


def _block_sizes() -> dict[int, tuple[int, int]]:
    """(values, bytes) of a block of each tensor type, by number."""
    return {int(kind): size for kind, size in gguf_package().GGML_QUANT_SIZES.items()}
