"""The safetensors files of a model directory, checked before a byte of a tensor is read."""

import json
from pathlib import Path
from typing import NamedTuple

from safetensors import SafetensorError, safe_open

from interlock.core.errors import CheckpointError

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"


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
        stored = _header(directory / single, problems) or {}
    elif (directory / INDEX).is_file():
        for file, names in sorted(_shards(directory / INDEX, problems).items()):
            stored.update(_shard(directory / file, file, names, problems))
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


def _shards(index: Path, problems: list[str]) -> dict[str, set[str]]:
    """The files that an index names, with the tensors that it places in each."""
    files: dict[str, set[str]] = {}
    try:
        weight_map = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
        if not all(isinstance(file, str) for file in weight_map.values()) or not weight_map:
            raise ValueError("weight_map must map tensor names to file names")
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        problems.append(f"{index}: not a valid index: {error!r}")
        return files
    for name, file in weight_map.items():
        files.setdefault(file, set()).add(name)
    return files


def _shard(path: Path, file: str, names: set[str], problems: list[str]) -> dict[str, StoredTensor]:
    """The tensors of one shard; every disagreement with the index goes to `problems`."""
    if Path(file).name != file or not path.is_file():
        problems.append(f"{path}: this shard is missing; {INDEX} names it")
        return {}
    header = _header(path, problems)
    if header is None:
        return {}
    if absent := sorted(names - header.keys()):
        problems.append(f"{path}: tensors that {INDEX} places here are not in it: {absent}")
    if extra := sorted(header.keys() - names):
        problems.append(f"{path}: tensors that {INDEX} does not place here: {extra}")
    return header


def _header(path: Path, problems: list[str]) -> dict[str, StoredTensor] | None:
    """The tensors of one file; None and an entry in `problems` unless header and size agree."""
    try:
        with safe_open(str(path), framework="np") as file:
            found = {name: file.get_slice(name) for name in file.keys()}
            return {
                name: StoredTensor(path, part.get_dtype(), tuple(part.get_shape()))
                for name, part in found.items()
            }
    except (SafetensorError, OSError) as error:
        problems.append(f"{path}: truncated or corrupt: {error}")
        return None
