"""What planes in fp8 hold, decoded from its definition: no backend's code is used.

Legend: E entries, G groups of N numbers that share a scale.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from interlock.core.model import AttentionInput

FIELDS = {"k": "k_TKD", "v": "v_TKV", "latent": "latent_TC"}
"""Plane that may be quantised -> the input that it stores."""


def as_stored(
    inputs: AttentionInput, planes: Mapping[str, Tensor], places: Sequence[tuple[int, int, int]]
) -> AttentionInput:
    """The inputs with what the planes hold of them at places (entry, page, offset).

    Without planes of scales the inputs themselves. Asserts that every number was stored to one part
    in 16, or for small ones to a step of their group.
    """
    fields = {name: field for name, field in FIELDS.items() if f"{name}_scale" in planes}
    if not fields or not places:
        return inputs
    entries, pages, offsets = (list(column) for column in zip(*places, strict=True))
    changed: dict[str, Any] = {}
    for name, field in fields.items():
        given: Tensor = getattr(inputs, field).to(torch.float64).clone()
        scale_EG = planes[f"{name}_scale"][pages, offsets].cpu().double().numpy()
        codes = planes[name].view(torch.uint8)[pages, offsets].cpu().numpy()
        numbers_EGN = _numbers(codes).reshape(*scale_EG.shape, -1) * scale_EG[..., None]
        exact_EGN = given[entries].numpy().reshape(numbers_EGN.shape)
        allowed = np.maximum(np.abs(exact_EGN) / 16, scale_EG[..., None] * 2.0**-10)
        assert (np.abs(numbers_EGN - exact_EGN) <= allowed).all(), f"{name} was stored wrong"
        given[entries] = torch.from_numpy(numbers_EGN).view(given[entries].shape)
        changed[field] = given
    return replace(inputs, **changed)


def poison(plane: Tensor, hidden: Tensor) -> None:
    """Make the slots where `hidden` is True NaN."""
    if plane.dtype.itemsize == 1:
        plane.view(torch.uint8)[hidden] = 0x7F
    else:
        plane[hidden] = float("nan")


def _numbers(codes: NDArray[np.uint8]) -> NDArray[np.float64]:
    """Of e4m3 codes: sign, 4 bits of exponent with bias 7, 3 of fraction; 0x7f is NaN."""
    exponent, fraction = codes >> 3 & 15, (codes & 7) / 8
    size = np.where(
        exponent == 0, fraction * 2.0**-6, (1 + fraction) * np.exp2(exponent.astype(float) - 7)
    )
    numbers: NDArray[np.float64] = np.where(codes >> 7, -size, size)
    numbers[codes & 0x7F == 0x7F] = np.nan
    return numbers
