"""Random parameters for models without files."""

import math
import zlib
from collections.abc import Iterable
from fnmatch import fnmatchcase

import torch
from torch import Tensor

from interlock.core.errors import ContractError
from interlock.core.weights import Part, Shape, WeightSource


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

    def take(
        self, name: str, shape: Shape, dtype: torch.dtype, device: torch.device, part: Part = ()
    ) -> Tensor:
        """A random tensor of this shape, or `part` of it.

        Raises ContractError when it was taken before.
        """
        if name in self._taken:
            raise ContractError(f"{self.title}: tensor {name!r} was taken twice")
        self._taken.add(name)
        tensor = self.read(name, shape, dtype, device, part)
        if self.kept is not None:
            self.kept[name] = tensor.clone()
        return tensor

    def read(
        self, name: str, shape: Shape, dtype: torch.dtype, device: torch.device, part: Part = ()
    ) -> Tensor:
        """Values drawn in fp64 on the CPU, then rounded."""
        generator = torch.Generator().manual_seed(zlib.crc32(f"{self.seed}/{name}".encode()))
        values = torch.randn(shape, generator=generator, dtype=torch.float64)
        if len(shape) == 1:
            values = 0.1 * values + (0.0 if name.endswith("bias") else 1.0)
        elif "embed" not in name:
            values = values * (1.4 / math.sqrt(shape[-1]))
        return values[part].to(device=device, dtype=dtype).clone()
