"""How layers run functions of rows: as fast as torch can, or so that a row's bits are its own.

The last bits of a matrix product depend on how many rows it has, and those of silu on whether an
element falls into a vector or into what is left after the last full one. `TiledRows` always calls
kernels with the same shape, rows padded, and keeps rows out of the part that is left over.
Legend: T rows, E inputs, F outputs.
"""

from collections.abc import Callable, Iterator
from functools import cache
from typing import TypeVar

import torch
from torch import Tensor
from torch.nn import functional

from interlock.core.errors import ConfigError
from interlock.plugins.models.rope import rotate

Out = TypeVar("Out", Tensor, tuple[Tensor, Tensor])

TILE = 16
"""Rows of a tile. A single decoding request pays for as many; more makes long prompts cheaper."""
VECTOR = 64
"""Elements in the largest step of torch's vector loops (two registers of 512 bits in bfloat16)."""
SERIAL = 1 << 15
"""Torch runs loops over fewer elements on one thread; more threads would cut rows differently."""


def swiglu(gate: Tensor, up: Tensor) -> Tensor:
    """silu(gate) * up (arXiv 2002.05202)."""
    return functional.silu(gate) * up


class Rows:
    """Calls torch on all rows at once."""

    numerics = "fast"

    def linear(self, x_TE: Tensor, weight_FE: Tensor, bias_F: Tensor | None = None) -> Tensor:
        """x @ weight.T + bias."""
        return functional.linear(x_TE, weight_FE, bias_F)

    def apply(self, function: Callable[..., Out], *inputs: Tensor) -> Out:
        """`function` of tensors whose last axis is a row; it treats each row alike."""
        return function(*inputs)

    def norm(self, x: Tensor, weight_E: Tensor, eps: float) -> Tensor:
        """x / rms(x) * weight over the last axis, computed in the weight's dtype, in x's dtype."""

        def normalised(x: Tensor) -> Tensor:
            wide = x.to(weight_E.dtype)
            return functional.rms_norm(wide, weight_E.shape, weight_E, eps).to(x.dtype)

        return self.apply(normalised, x)

    def swiglu(self, gate_up_TE: Tensor) -> Tensor:
        """silu(gate) * up of the halves of the last axis (arXiv 2002.05202)."""
        return self.apply(swiglu, *gate_up_TE.chunk(2, dim=-1))

    def rotate(self, x_THD: Tensor, cos_T1R: Tensor, sin_T1R: Tensor) -> Tensor:
        """See `rope.rotate`."""
        return rotate(x_THD, cos_T1R, sin_T1R)


class TiledRows(Rows):
    """A row's result depends on the row alone, bit for bit."""

    numerics = "batch_invariant"

    def linear(self, x_TE: Tensor, weight_FE: Tensor, bias_F: Tensor | None = None) -> Tensor:
        """Products of TILE rows at a time; sizes that are odd for a kernel are padded.

        Raises ConfigError where this machine's product of that shape depends on a row's place.
        """
        outputs, inputs = weight_FE.shape
        pad_in, pad_out = -inputs % TILE, -outputs % TILE
        if pad_in or pad_out:
            weight_FE = functional.pad(weight_FE, (0, pad_in, 0, pad_out))
            x_TE = functional.pad(x_TE, (0, pad_in))
            bias_F = None if bias_F is None else functional.pad(bias_F, (0, pad_out))
        kind = weight_FE.dtype, weight_FE.device, torch.get_num_threads()
        _verify_product(*weight_FE.shape, bias_F is not None, *kind)
        flat_TE = x_TE.reshape(-1, x_TE.shape[-1])
        parts = [functional.linear(tile, weight_FE, bias_F) for tile, _ in _tiles(flat_TE, TILE, 0)]
        return torch.cat(parts)[: len(flat_TE), :outputs].reshape(*x_TE.shape[:-1], outputs)

    def apply(self, function: Callable[..., Out], *inputs: Tensor) -> Out:
        """A few rows at a time, followed by spare ones that fill the last vector."""
        shape, size = inputs[0].shape[:-1], inputs[0].shape[-1]
        flat = [x.reshape(-1, x.shape[-1]) for x in inputs]
        spare = -(-VECTOR // size)
        rows = TILE
        while rows > 1 and (rows + spare) * size >= SERIAL:
            rows //= 2
        tiles = zip(*(_tiles(x, rows, spare) for x in flat), strict=True)
        results = [_first(function(*(tile for tile, _ in one)), one[0][1]) for one in tiles]
        parts = [torch.cat(each) for each in zip(*results, strict=True)]
        joined = [part.view(*shape, part.shape[-1]) for part in parts]
        return joined[0] if len(joined) == 1 else tuple(joined)  # type: ignore[return-value]  # as the function


FAST, TILED = Rows(), TiledRows()


def _tiles(x_TE: Tensor, rows: int, spare: int) -> Iterator[tuple[Tensor, int]]:
    """Copies of `rows` + `spare` rows, and how many of them are real; zeros fill up.

    There is always one, so that a result of no rows has its shape.
    """
    for first in range(0, max(len(x_TE), 1), rows):
        part = x_TE[first : first + rows]
        tile = x_TE.new_zeros(rows + spare, x_TE.shape[1])
        tile[: len(part)] = part
        yield tile, len(part)


def _first(result: Tensor | tuple[Tensor, ...], count: int) -> list[Tensor]:
    return [x[:count] for x in (result if isinstance(result, tuple) else (result,))]


@cache
def _verify_product(
    outputs: int, inputs: int, biased: bool, dtype: torch.dtype, device: torch.device, threads: int
) -> None:
    """Raise ConfigError if a row's product depends on its place or on the other rows."""
    generator = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator).to(device, dtype)

    weight_FE, x_TE = normal(outputs, inputs), normal(TILE, inputs)
    bias_F = normal(outputs) if biased else None
    y_TF = functional.linear(x_TE, weight_FE, bias_F)
    for shift in range(1, TILE):
        others_TE = normal(TILE, inputs)
        others_TE[shift] = x_TE[0]
        turned_TF = functional.linear(x_TE.roll(shift, 0), weight_FE, bias_F)
        alone_F = functional.linear(others_TE, weight_FE, bias_F)[shift]
        if not (torch.equal(turned_TF.roll(-shift, 0), y_TF) and torch.equal(alone_F, y_TF[0])):
            raise ConfigError(
                f"numerics=batch_invariant: on this {device.type} with {threads} threads, a row of "
                f"a {dtype} product [{TILE}, {inputs}] x [{inputs}, {outputs}] depends on its "
                "place; try another dtype or threads=1"
            )
