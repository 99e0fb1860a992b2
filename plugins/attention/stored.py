"""Rows as the planes hold them: in the run's dtype, or in e4m3 beside their scales (see `fp8`).

A plane `name` with a plane `name_scale` beside it is quantised; whoever wrote the layout decides,
and both functions go by the planes alone. Legend: T tokens, G groups that have a scale each.
"""

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from interlock.core.cache_spec import CacheGroup, Full, Lifetime, Plane, Window
from interlock.core.model import AttentionSpec, HeadsInput, LatentInput
from interlock.plugins.attention.fp8 import FP8_NAME, dequantised, quantised

MOST_LATENTS = 128
"""Numbers of a latent that share a scale, at most; fp8_ds_mla (FlashMLA) has 4 scales for 512."""
MEASURED_ROWS = 256
"""Rows of each layer whose error is measured: enough for two digits, and soon over."""


def cache_groups_of(
    specs: tuple[AttentionSpec, ...], first_layer: int = 0
) -> tuple[CacheGroup, ...]:
    """The plain groups: K and V a head, or MLA's normalised latent with its rotated key.

    One group per (planes, lifetime); layer numbers start at `first_layer`.
    """
    members: dict[tuple[tuple[Plane, ...], Lifetime], list[int]] = {}
    for offset, spec in enumerate(specs):
        if spec.form == "heads":
            planes: tuple[Plane, ...] = (
                Plane("k", (spec.num_kv_heads, spec.head_dim), shard_axis=0),
                Plane("v", (spec.num_kv_heads, spec.v_head_dim), shard_axis=0),
            )
        else:
            planes = (Plane("latent", (spec.latent_rank + spec.rope_dim,)),)
        lifetime: Lifetime = Window(spec.window) if spec.window else Full()
        members.setdefault((planes, lifetime), []).append(first_layer + offset)
    return tuple(CacheGroup(tuple(n), planes, life) for (planes, life), n in members.items())


def stored_groups(
    specs: tuple[AttentionSpec, ...], first_layer: int, cache_dtype: str
) -> tuple[CacheGroup, ...]:
    """The plain groups, or with cache.dtype=fp8 the same with e4m3 planes and their scales.

    Plane NAME then has its fp32 scales in NAME_scale: one a token and head, or one for each of the
    equal parts of a latent. Its rotated key stays in the run's dtype, in a plane "rope".
    """
    groups = cache_groups_of(specs, first_layer)
    if cache_dtype != "fp8":
        return groups
    return tuple(replace(g, planes=_fp8_planes(specs[g.layers[0] - first_layer])) for g in groups)


def _fp8_planes(spec: AttentionSpec) -> tuple[Plane, ...]:
    if spec.form == "latent":
        rank = spec.latent_rank
        parts = next(n for n in range(1, rank + 1) if rank % n == 0 and rank // n <= MOST_LATENTS)
        scale = Plane("latent_scale", (parts,), "float32")
        return Plane("latent", (rank,), FP8_NAME), scale, Plane("rope", (spec.rope_dim,))
    heads = spec.num_kv_heads
    return (
        Plane("k", (heads, spec.head_dim), FP8_NAME, shard_axis=0),
        Plane("k_scale", (heads,), "float32", shard_axis=0),
        Plane("v", (heads, spec.v_head_dim), FP8_NAME, shard_axis=0),
        Plane("v_scale", (heads,), "float32", shard_axis=0),
    )


def new_rows(inputs: HeadsInput | LatentInput, planes: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Plane -> what a layer stores of its new tokens [T, ...]."""
    if isinstance(inputs, HeadsInput):
        return {"k": inputs.k_TKD, "v": inputs.v_TKV}
    if "rope" in planes:
        return {"latent": inputs.latent_TC, "rope": inputs.k_rope_TR}
    return {"latent": torch.cat((inputs.latent_TC, inputs.k_rope_TR), dim=-1)}


def read(planes: Mapping[str, Tensor], name: str, slots: Tensor) -> Tensor:
    """[*slots.shape, *row] of "k", "v" or "latent" (its rotary key included), a copy.

    In the run's dtype, or where it is quantised in fp32 or a rotary key's wider dtype.
    """
    rows = _taken(planes[name], slots)
    scale = planes.get(f"{name}_scale")
    if scale is None:
        return rows
    scale_G = _taken(scale, slots)
    size = planes[name].shape[2:].numel() // scale_G.shape[-1]
    grouped_GN = rows.view(*scale_G.shape, size)
    rows = dequantised(grouped_GN, scale_G).view(rows.shape)
    if name == "latent":
        return torch.cat((rows, _taken(planes["rope"], slots)), dim=-1)  # in the wider dtype
    return rows


class RowWriter:
    """Writes new rows, and measures what quantising the first of each layer costs."""

    def __init__(self) -> None:
        self._measured: dict[int, int] = {}
        self._squares: dict[str, Tensor] = {}

    def write(
        self, planes: Mapping[str, Tensor], slots_T: Tensor, rows: Mapping[str, Tensor]
    ) -> None:
        """Store rows [T, ...] of each plane in these slots, quantised where it has scales."""
        for name, row in rows.items():
            plane, scale = planes[name], planes.get(f"{name}_scale")
            if scale is None:
                _put(plane, slots_T, row.to(plane.dtype))
                continue
            groups = scale.shape[-1]
            width = row.shape[1:].numel() // groups
            codes_GN, scale_G = quantised(row.reshape(len(row), groups, width))
            _put(plane, slots_T, codes_GN.view(row.shape))
            _put(scale, slots_T, scale_G)
        self.measure(planes, slots_T, rows)

    def measure(
        self, planes: Mapping[str, Tensor], slots_T: Tensor, rows: Mapping[str, Tensor]
    ) -> None:
        """Take note of what was lost of these rows, just written by whomever.

        Only of the first of each layer, on the device without waiting for it; a launch that is
        being captured in a CUDA graph is left alone.
        """
        for name, row in rows.items():
            plane = planes[name]
            seen = self._measured.get(id(plane), 0)
            if f"{name}_scale" not in planes or seen >= MEASURED_ROWS:
                continue
            if plane.is_cuda and torch.cuda.is_current_stream_capturing():
                continue
            self._measured[id(plane)] = seen + len(row)
            stored = read(planes, name, slots_T)[..., : row.shape[-1]].double()
            given = torch.where(stored.isfinite(), row.double(), 0)
            squares = torch.stack((torch.nansum((stored - given) ** 2), (given**2).sum()))
            self._squares[name] = self._squares.get(name, 0) + squares

    def measures(self, planes: Mapping[str, Tensor]) -> bool:
        """True if `measure` still takes note of this layer's rows."""
        return any(
            f"{name}_scale" in planes and self._measured.get(id(plane), 0) < MEASURED_ROWS
            for name, plane in planes.items()
        )

    def losses(self) -> dict[str, float]:
        """Plane -> relative error sqrt(sum (stored - given)^2 / sum given^2) of what was measured.

        Over all layers that this backend wrote; empty where nothing is quantised.
        """
        sums = {name: squares.tolist() for name, squares in self._squares.items()}
        return {name: (wrong / given) ** 0.5 for name, (wrong, given) in sums.items() if given}


def _taken(plane: Tensor, slots: Tensor) -> Tensor:
    """[*slots.shape, *row] of a plane [P, B, *row]."""
    flat = _bytes(plane).flatten(2).flatten(0, 1)
    rows = flat.index_select(0, slots.flatten())
    return rows.view(plane.dtype).view(*slots.shape, *plane.shape[2:])


def _put(plane: Tensor, slots_T: Tensor, rows: Tensor) -> None:
    _bytes(plane).flatten(0, 1).index_copy_(0, slots_T, _bytes(rows))


def _bytes(tensor: Tensor) -> Tensor:
    """Torch copies numbers of 8 bits by index only as integers."""
    return tensor.view(torch.uint8) if tensor.dtype.itemsize == 1 else tensor
