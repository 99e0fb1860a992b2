"""Weights from safetensors files."""

from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from interlock.core.errors import CheckpointError
from interlock.core.weights import Part, Shape, WeightSource, part_shape
from interlock.plugins.models.safetensors_files import SINGLE, checked_tensors

FLOATS = ("F64", "F32", "F16", "BF16")
INTEGERS = ("I64", "I32", "I16", "I8", "U8", "BOOL")


class SafetensorsDirectory(WeightSource):
    """`model.safetensors`, or the shards that `model.safetensors.index.json` names.

    Raises CheckpointError, naming the file, for a missing shard, a truncated or corrupt file, an
    index that disagrees with its shards, or a directory without safetensors; all at once.
    """

    def __init__(self, directory: Path, single: str = SINGLE) -> None:
        super().__init__(str(directory))
        self._stored = checked_tensors(directory, single)
        self._open: dict[Path, Any] = {}

    def names(self) -> frozenset[str]:
        """Every tensor in the files."""
        return frozenset(self._stored)

    def has(self, name: str) -> bool:
        """True when a file holds it."""
        return name in self._stored

    def shape(self, name: str) -> Shape | None:
        """The shape in the file's header."""
        stored = self._stored.get(name)
        return stored.shape if stored else None

    def read(
        self, name: str, shape: Shape, dtype: torch.dtype, device: torch.device, part: Part = ()
    ) -> Tensor:
        """A copy in memory of its own: the file may be replaced while the model runs."""
        file, stored_dtype, _ = self._stored[name]
        known = FLOATS if dtype.is_floating_point else INTEGERS
        if stored_dtype not in known:
            why = "quantised weights are not read" if dtype.is_floating_point else "it holds ids"
            raise CheckpointError(
                f"{file}: tensor {name} is stored as {stored_dtype}; {why}, only {', '.join(known)}"
            )
        try:
            if file not in self._open:
                self._open[file] = safe_open(str(file), framework="pt")
            stored = self._open[file]
            values: Tensor = stored.get_slice(name)[part] if part else stored.get_tensor(name)
        except (SafetensorError, OSError) as error:
            raise CheckpointError(f"{file}: tensor {name} cannot be read: {error}") from error
        return torch.empty(part_shape(shape, part), dtype=dtype, device=device).copy_(values)
