"""Where a decoder's parameters come from: each tensor is taken once, mistakes are listed."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from fnmatch import fnmatchcase

import torch
from torch import Tensor

from interlock.core.errors import CheckpointError, ContractError

Shape = tuple[int, ...]
Part = tuple[slice, ...]
"""A slice for each axis, all within the shape; () is everything."""


class WeightSource(ABC):
    """Named tensors, and the account of which were asked for.

    A family takes every parameter of its decoder once and then calls `finish`. Problems are
    collected on the way, so that one error lists all missing, misshapen and unexpected tensors.
    """

    def __init__(self, title: str) -> None:
        self.title = title
        self.finished = False
        self.given_bytes = 0
        """Of the tensors that `take` returned, in memory."""
        self._taken: set[str] = set()
        self._missing: list[str] = []
        self._wrong: list[str] = []
        self._left: list[str] = []

    @abstractmethod
    def names(self) -> frozenset[str]:
        """Every tensor of the source."""

    @abstractmethod
    def shape(self, name: str) -> Shape | None:
        """The stored shape; None if the source has no such tensor."""

    @abstractmethod
    def read(
        self, name: str, shape: Shape, dtype: torch.dtype, device: torch.device, part: Part = ()
    ) -> Tensor:
        """A new tensor in memory of its own with the stored values. `take` is what families call.

        With `part`, only that slice of it is read from the source.
        Raises CheckpointError when the stored values cannot be read as `dtype`.
        """

    def has(self, name: str) -> bool:
        """True when an optional tensor (a bias) is stored and must therefore be taken."""
        return name in self.names()

    def take(
        self, name: str, shape: Shape, dtype: torch.dtype, device: torch.device, part: Part = ()
    ) -> Tensor:
        """The tensor `name`, which must have this shape as a whole; `part` of it is returned.

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
            tensor = self.read(name, shape, dtype, device, part)
            self.given_bytes += tensor.nbytes
            return tensor
        return torch.empty(part_shape(shape, part), dtype=dtype, device=device)

    def leave(self, pattern: str) -> None:
        """Tensors of this shell pattern belong to other ranks."""
        self._left.append(pattern)

    def finish(self, ignore: Sequence[str] = ()) -> None:
        """Raise CheckpointError with every tensor that is missing, misshapen or was never taken.

        `ignore` holds shell patterns of names that may stay unused.
        """
        unused = sorted(
            name
            for name in self.names() - self._taken
            if not any(fnmatchcase(name, pattern) for pattern in (*ignore, *self._left))
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


def part_shape(shape: Shape, part: Part) -> Shape:
    """The shape of a part."""
    sizes = [len(range(n)[one]) for n, one in zip(shape, part, strict=False)]
    return (*sizes, *shape[len(sizes) :])
