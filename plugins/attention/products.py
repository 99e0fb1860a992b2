"""Matrix products whose bits depend neither on a row's place nor on what runs beside it.

The same call with the same shape is the same sum; what remains is measured. Results of MKL depend
on the alignment of rows that are not whole vectors, so operands are padded. Where a library chooses
its kernel by the number of products in a batch, that number is fixed as well. Each shape is checked
when first used, and refused if this machine breaks the promise.

Legend: n blocks, K key/value heads, M rows, X (padded) and Y sizes, T tokens, H heads, R rows of a
tile, E and F sizes of a projection.
"""

from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor

from interlock.core.errors import ConfigError
from interlock.plugins.attention.blocks import GROUP

PRODUCT_ROWS = 32
"""Rows of a product: a block has as many queries as the heads of a group leave room for."""
VECTOR = 16
"""Elements that a row is padded to a multiple of: 64 bytes in fp32."""


def product(a_nKMX: Tensor, b_nKXY: Tensor) -> Tensor:
    """[n, K, M, Y] for up to GROUP blocks, each block's and head's product on its own.

    Raises ConfigError where this machine's products depend on each other.
    """
    (blocks, kv_heads, rows, inner), outputs = a_nKMX.shape, b_nKXY.shape[-1]
    transposed = b_nKXY.stride(-1) != 1
    threads = torch.get_num_threads()
    _verify_batches(
        kv_heads, rows, inner, outputs, transposed, a_nKMX.dtype, a_nKMX.device, threads
    )
    result = _batched(a_nKMX.flatten(0, 1), b_nKXY.flatten(0, 1), GROUP * kv_heads)
    return result.view(blocks, kv_heads, rows, outputs)


def project(x_THE: Tensor, weight_HEF: Tensor) -> Tensor:
    """[T, H, F] in fp32 or the wider dtype of x: each head's product, a fixed number of rows each.

    Raises ConfigError where this machine's result for a row depends on its place.
    """
    wide = torch.promote_types(x_THE.dtype, torch.float32)
    heads, size, outputs = weight_HEF.shape
    inner, outer = padded_size(size), padded_size(outputs)
    weight_HXF = F.pad(weight_HEF.to(wide), (0, outer - outputs, 0, inner - size)).contiguous()
    _verify_rows(heads, inner, outer, wide, x_THE.device, torch.get_num_threads())
    missing = -len(x_THE) % PRODUCT_ROWS
    x_HTX = padded(F.pad(x_THE.to(wide), (0, 0, 0, 0, 0, missing)).transpose(0, 1), size)
    out_HTF = x_HTX.new_empty(*x_HTX.shape[:2], outer)
    for at in range(0, len(x_THE), PRODUCT_ROWS):
        rows = slice(at, at + PRODUCT_ROWS)
        out_HTF[:, rows] = torch.bmm(x_HTX[:, rows].contiguous(), weight_HXF)
    return out_HTF.transpose(0, 1)[: len(x_THE), :, :outputs]


def padded_size(size: int) -> int:
    """The next multiple of a vector."""
    return -(-size // VECTOR) * VECTOR


def padded(x: Tensor, size: int) -> Tensor:
    """A contiguous copy with zeros after the last axis, up to a padding of `size`."""
    return F.pad(x, (0, padded_size(size) - x.shape[-1])).contiguous()


def _batched(a: Tensor, b: Tensor, most: int) -> Tensor:
    """Products of a batch: as many as there are on a CPU, `most` on devices that count them."""
    missing = 0 if a.is_cpu else most - len(a)
    if not missing:
        return torch.bmm(a, b)
    spare = (0, 0, 0, 0, 0, missing)
    return torch.bmm(F.pad(a, spare), F.pad(b, spare))[: len(a)]


@cache
def _verify_batches(
    kv_heads: int, rows: int, inner: int, outputs: int, transposed: bool, dtype: torch.dtype,
    device: torch.device, threads: int,
) -> None:  # fmt: skip
    """Raise ConfigError if a product depends on its place in a batch or on the batch's size."""
    most = GROUP * kv_heads
    a = _normal(1, most, rows, inner).to(device, dtype)
    b_shape = (most, outputs, inner) if transposed else (most, inner, outputs)
    b = _normal(2, *b_shape).to(device, dtype)
    b = b.mT if transposed else b
    whole = _batched(a, b, most)
    for blocks in (1, 2, 3, GROUP - 1):
        some = slice(most - blocks * kv_heads, most)
        if not torch.equal(_batched(a[some], b[some], most), whole[some]):
            what = f"products [{rows}, {inner}] x [{inner}, {outputs}]"
            raise _refusal(what, dtype, device, threads)


@cache
def _verify_rows(
    heads: int, inner: int, outputs: int, dtype: torch.dtype, device: torch.device, threads: int
) -> None:
    """Raise ConfigError if a row's product depends on its place or on the other rows."""
    weight = _normal(1, heads, inner, outputs).to(device, dtype)
    x = _normal(2, heads, PRODUCT_ROWS, inner).to(device, dtype)
    whole = torch.bmm(x, weight)
    for place in range(PRODUCT_ROWS):
        others = _normal(3 + place, heads, PRODUCT_ROWS, inner).to(device, dtype)
        others[:, place] = x[:, 0]
        if not torch.equal(torch.bmm(others, weight)[:, place], whole[:, 0]):
            what = f"rows of a product [{PRODUCT_ROWS}, {inner}] x [{inner}, {outputs}]"
            raise _refusal(what, dtype, device, threads)


def _normal(seed: int, *shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def _refusal(what: str, dtype: torch.dtype, device: torch.device, threads: int) -> ConfigError:
    return ConfigError(
        f"numerics=batch_invariant: on this {device.type} with {threads} threads, {dtype} {what} "
        "depend on what runs beside them; try another dtype or threads=1"
    )
