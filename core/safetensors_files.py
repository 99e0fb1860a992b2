"""The safetensors files of a model directory, checked before a byte of a tensor is read.

File format: 8 bytes little-endian header length, a JSON header {name: {dtype, shape,
data_offsets}}, then the data (https://huggingface.co/docs/safetensors).
"""

import json
from math import prod
from pathlib import Path
from typing import NamedTuple

from interlock.core.errors import CheckpointError

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
ITEM_BYTES = {
    **{"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "BOOL": 1, "F8_E4M3": 1, "F8_E5M2": 1},
    **{"I64": 8, "I32": 4, "I16": 2, "I8": 1, "U64": 8, "U32": 4, "U16": 2, "U8": 1},
}
MAX_HEADER_BYTES = 100_000_000


class StoredTensor(NamedTuple):
    """Where a tensor lies and what its header says; `dtype` is the format's name ("BF16")."""

    file: Path
    dtype: str
    shape: tuple[int, ...]


def checked_tensors(directory: Path, single: str = SINGLE) -> dict[str, StoredTensor]:
    """Every tensor of the file `single`, or of the shards that the model's index names.

    Raises CheckpointError, naming the file, for a missing shard, a truncated or corrupt file, an
    index that disagrees with its shards, or a directory without safetensors; all at once.
    """
    problems: list[str] = []
    stored: dict[str, StoredTensor] = {}
    if (directory / single).is_file():
        stored = _checked_header(directory / single, problems)
    elif (directory / INDEX).is_file():
        stored = _checked_shards(directory, problems)
    else:
        problems.append(_nothing_to_read(directory))
    if problems:
        raise CheckpointError("\n".join(problems))
    return stored


def _nothing_to_read(directory: Path) -> str:
    others = sorted(
        file.name
        for pattern in ("*.bin", "*.pth", "*.pt", "*.gguf")
        for file in directory.glob(pattern)
    )
    message = f"{directory}: no {SINGLE} and no {INDEX}"
    if others:
        message += (
            f"; {', '.join(others)} is not read (only safetensors are): convert it, for example "
            "with save_pretrained of transformers"
        )
    return message


def _checked_shards(directory: Path, problems: list[str]) -> dict[str, StoredTensor]:
    """The tensors of all shards; every disagreement with the index goes to `problems`."""
    index = directory / INDEX
    weight_map = _weight_map(index, problems)
    by_file: dict[str, set[str]] = {}
    for name, file in weight_map.items():
        by_file.setdefault(file, set()).add(name)
    stored: dict[str, StoredTensor] = {}
    for file, names in sorted(by_file.items()):
        path = directory / file
        if Path(file).name != file or not path.is_file():
            problems.append(f"{path}: this shard is missing; {INDEX} names it")
            continue
        before = len(problems)
        header = _checked_header(path, problems)
        if len(problems) > before:
            continue
        absent, extra = sorted(names - header.keys()), sorted(header.keys() - names)
        if absent:
            problems.append(f"{path}: tensors that {INDEX} places here are not in it: {absent}")
        if extra:
            problems.append(f"{path}: tensors that {INDEX} does not place here: {extra}")
        stored.update(header)
    return stored


def _weight_map(index: Path, problems: list[str]) -> dict[str, str]:
    try:
        weight_map = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
        if not all(isinstance(file, str) for file in weight_map.values()) or not weight_map:
            raise ValueError("weight_map must map tensor names to file names")
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        problems.append(f"{index}: not a valid index: {error!r}")
        return {}
    return dict(weight_map)


def _checked_header(path: Path, problems: list[str]) -> dict[str, StoredTensor]:
    """The tensors of one file; {} and an entry in `problems` unless header and size agree."""
    try:
        return _read_header(path)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        problems.append(f"{path}: truncated or corrupt: {error}")
        return {}


def _read_header(path: Path) -> dict[str, StoredTensor]:
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if size < 8 or not 2 <= length <= min(MAX_HEADER_BYTES, size - 8):
            raise ValueError(f"{size} bytes cannot hold a header of {length} bytes")
        header = json.loads(file.read(length))
    header.pop("__metadata__", None)
    end = max((entry["data_offsets"][1] for entry in header.values()), default=0)
    if 8 + length + end != size:
        raise ValueError(f"the header describes {8 + length + end} bytes, the file has {size}")
    stored = {}
    for name, entry in header.items():
        shape, (first, last) = tuple(entry["shape"]), entry["data_offsets"]
        item_bytes = ITEM_BYTES.get(entry["dtype"])
        if item_bytes is not None and last - first != prod(shape) * item_bytes:
            raise ValueError(f"tensor {name} has {last - first} bytes, not {list(shape)}")
        stored[name] = StoredTensor(path, entry["dtype"], shape)
    return stored
