"""Where a decoder's parameters come from: each tensor is taken once, mistakes are listed."""

import math
import zlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from interlock.core.errors import CheckpointError, ContractError
from interlock.core.safetensors_files import checked_tensors

Shape = tuple[int, ...]
FLOATS = ("F64", "F32", "F16", "BF16")


class WeightSource(ABC):
    """Named tensors, and the account of which were asked for.

    A family takes every parameter of its decoder once and then calls `finish`. Problems are
    collected on the way, so that one error lists all missing, misshapen and unexpected tensors.
    """

    def __init__(self, title: str) -> None:
        self.title = title
        self.finished = False
        self._taken: set[str] = set()
        self._missing: list[str] = []
        self._wrong: list[str] = []

    @abstractmethod
    def names(self) -> frozenset[str]:
        """Every tensor of the source."""

    @abstractmethod
    def shape(self, name: str) -> Shape | None:
        """The stored shape; None if the source has no such tensor."""

    @abstractmethod
    def read(self, name: str, shape: Shape, dtype: torch.dtype, device: torch.device) -> Tensor:
        """A new tensor in memory of its own with the stored values. `take` is what families call.

        Raises CheckpointError when the stored values cannot be read as `dtype`.
        """

    def has(self, name: str) -> bool:
        """True when an optional tensor (a bias) is stored and must therefore be taken."""
        return name in self.names()

    def take(self, name: str, shape: Shape, dtype: torch.dtype, device: torch.device) -> Tensor:
        """The tensor `name`, which must have this shape.

        A missing or misshapen one is noted for `finish` and stands in as uninitialised memory.
        Raises ContractError when the tensor was taken before.
        """
        if name in self._taken:
            raise ContractError(f"{self.title}: tensor {name!r} was taken twice")
        self._taken.add(name)
        stored = self.shape(name)
        if stored is None:
            self._missing.append(f"{name} {list(shape)}")
        elif stored != shape:
            self._wrong.append(f"{name} is {list(stored)}, the config asks for {list(shape)}")
        else:
            return self.read(name, shape, dtype, device)
        return torch.empty(shape, dtype=dtype, device=device)

    def finish(self, ignore: Sequence[str] = ()) -> None:
        """Raise CheckpointError with every tensor that is missing, misshapen or was never taken.

        `ignore` holds shell patterns of names that may stay unused.
        """
        unused = sorted(
            name
            for name in self.names() - self._taken
            if not any(fnmatchcase(name, pattern) for pattern in ignore)
        )
        unexpected = [f"{name} {list(self.shape(name) or ())}" for name in unused]
        parts = (
            ("missing", self._missing),
            ("misshapen", self._wrong),
            ("unexpected", unexpected),
        )
        lines = [f"{kind} ({len(found)}): {'; '.join(found)}" for kind, found in parts if found]
        if lines:
            raise CheckpointError(
                "\n  ".join([f"{self.title}: the tensors do not match the config", *lines])
            )
        self.finished = True


class SafetensorsDirectory(WeightSource):
    """`model.safetensors`, or the shards that `model.safetensors.index.json` names.

    Raises CheckpointError, naming the file, for a missing shard, a truncated or corrupt file, an
    index that disagrees with its shards, or a directory without safetensors; all at once.
    """

    def __init__(self, directory: Path) -> None:
        super().__init__(str(directory))
        self._stored = checked_tensors(directory)
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

    def read(self, name: str, shape: Shape, dtype: torch.dtype, device: torch.device) -> Tensor:
        """A copy in memory of its own: the file may be replaced while the model runs."""
        file, stored_dtype, _ = self._stored[name]
        if stored_dtype not in FLOATS:
            raise CheckpointError(
                f"{file}: tensor {name} is stored as {stored_dtype}; quantised weights are not "
                f"read, only {', '.join(FLOATS)}"
            )
        try:
            if file not in self._open:
                self._open[file] = safe_open(str(file), framework="pt")
            values: Tensor = self._open[file].get_tensor(name)
        except (SafetensorError, OSError) as error:
            raise CheckpointError(f"{file}: tensor {name} cannot be read: {error}") from error
        return torch.empty(shape, dtype=dtype, device=device).copy_(values)


class RandomWeights(WeightSource):
    """Any tensor that is asked for, drawn from (seed, name): equal in every dtype up to rounding.

    One-dimensional weights lie around 1, biases around 0, matrices have deviation
    1.4 / sqrt(inputs), embeddings 1, so that logits of a small random model differ clearly.
    Optional tensors are absent, except those that match `optional` (shell patterns).
    """

    def __init__(self, seed: int, optional: Iterable[str] = (), keep: bool = False) -> None:
        super().__init__(f"random weights (seed {seed})")
        self.seed = seed
        self.optional = tuple(optional)
        self.kept: dict[str, Tensor] | None = {} if keep else None
        """With `keep`: everything that was taken, by name, for writing a checkpoint."""

    def names(self) -> frozenset[str]:
        """What was taken so far: nothing is ever left over."""
        return frozenset(self._taken)

    def shape(self, name: str) -> Shape | None:
        """Unknown until it is asked for."""
        return None

    def has(self, name: str) -> bool:
        """True for the optional tensors that were asked for at construction."""
        return any(fnmatchcase(name, pattern) for pattern in self.optional)

    def take(self, name: str, shape: Shape, dtype: torch.dtype, device: torch.device) -> Tensor:
        """A random tensor of this shape. Raises ContractError when it was taken before."""
        if name in self._taken:
            raise ContractError(f"{self.title}: tensor {name!r} was taken twice")
        self._taken.add(name)
        tensor = self.read(name, shape, dtype, device)
        if self.kept is not None:
            self.kept[name] = tensor.clone()
        return tensor

    def read(self, name: str, shape: Shape, dtype: torch.dtype, device: torch.device) -> Tensor:
        """Values drawn in fp64 on the CPU, then rounded."""
        generator = torch.Generator().manual_seed(zlib.crc32(f"{self.seed}/{name}".encode()))
        values = torch.randn(shape, generator=generator, dtype=torch.float64)
        if len(shape) == 1:
            values = 0.1 * values + (0.0 if name.endswith("bias") else 1.0)
        elif "embed" not in name:
            values = values * (1.4 / math.sqrt(shape[-1]))
        return values.to(device=device, dtype=dtype)
