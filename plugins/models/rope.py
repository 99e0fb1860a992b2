"""Rotary position embedding: rates, tables and the rotation.

RoFormer (arXiv 2104.09864, eq. 15); yarn (arXiv 2309.00071, section 3.2); LongRoPE (arXiv
2402.13753); llama3's scheme as published with Llama 3.1.
Legend: T tokens, H heads, D head size, R rotated size, P positions.
"""

import math

import torch
from torch import Tensor

from interlock.plugins.models.rope_scaling import RopeScaling


def rope_rates(scaling: RopeScaling, size: int, dtype: torch.dtype) -> Tensor:
    """Radians a position for each pair of a rotated vector of `size`: [size / 2], in `dtype`.

    "dynamic" scaling leaves the rates as they are within the original length.
    """
    theta_R = scaling.theta ** (torch.arange(0, size, 2, dtype=dtype) / size)
    rates_R = 1.0 / theta_R
    if scaling.kind == "linear":
        return rates_R / scaling.factor
    if scaling.kind == "longrope":
        return 1.0 / (torch.tensor(scaling.short_factors, dtype=dtype) * theta_R)
    if scaling.kind == "llama3":
        return _llama3(rates_R, scaling)
    if scaling.kind == "yarn":
        kept_R = 1.0 - _yarn_ramp(scaling, size, dtype)
        return (1.0 / (scaling.factor * theta_R)) * (1.0 - kept_R) + rates_R * kept_R
    return rates_R


def _llama3(rates_R: Tensor, scaling: RopeScaling) -> Tensor:
    """Short waves stay, long ones are divided by the factor, those between are blended."""
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    wave_R = 2 * math.pi / rates_R
    slow_R = rates_R / scaling.factor
    blend_R = (scaling.original_positions / wave_R - low) / (high - low)
    blended_R = (1 - blend_R) * slow_R + blend_R * rates_R
    scaled_R = torch.where(wave_R > scaling.original_positions / low, slow_R, blended_R)
    return torch.where(wave_R < scaling.original_positions / high, rates_R, scaled_R)


def _yarn_ramp(scaling: RopeScaling, size: int, dtype: torch.dtype) -> Tensor:
    """0 for pairs that keep their rate, 1 for those divided by the factor: [size / 2]."""

    def pair_turning(turns: float) -> float:
        span = scaling.original_positions / (turns * 2 * math.pi)
        return size * math.log(span) / (2 * math.log(scaling.theta))

    low, high = pair_turning(scaling.beta_fast), pair_turning(scaling.beta_slow)
    if scaling.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, size - 1)
    if low == high:
        high += 0.001  # the ramp has no width; keep it finite
    return ((torch.arange(size // 2, dtype=dtype) - low) / (high - low)).clamp(0, 1)


def rope_tables(
    scaling: RopeScaling,
    size: int,
    num_positions: int,
    dtype: torch.dtype,
    device: torch.device,
) -> tuple[Tensor, Tensor]:
    """cos and signed sin [P, size], computed and kept in fp32 or the wider model dtype.

    Entries i and i + size / 2 have one angle; the first of them has -sin, as `rotate` adds.
    """
    wide = torch.promote_types(dtype, torch.float32)
    positions_P = torch.arange(num_positions, dtype=wide)
    angles_PR = positions_P[:, None] * rope_rates(scaling, size, wide)
    factor = scaling.table_factor
    cos_PR, sin_PR = (angles_PR.cos() * factor).to(device), (angles_PR.sin() * factor).to(device)
    return torch.cat((cos_PR, cos_PR), dim=-1), torch.cat((-sin_PR, sin_PR), dim=-1)


def rotate(x_THD: Tensor, cos_T1R: Tensor, sin_T1R: Tensor) -> Tensor:
    """Rotate pairs (i, i + R / 2) of the last axis; the arithmetic is in the tables' dtype.

    Tables as from `rope_tables`. Entries beyond the R that they turn stay as they are.
    """
    size = cos_T1R.shape[-1]
    if size == x_THD.shape[-1]:
        return _turned(x_THD, cos_T1R, sin_T1R)
    return torch.cat((_turned(x_THD[..., :size], cos_T1R, sin_T1R), x_THD[..., size:]), dim=-1)


def _turned(x_THR: Tensor, cos_T1R: Tensor, sin_T1R: Tensor) -> Tensor:
    other_THR = x_THR.roll(x_THR.shape[-1] // 2, -1)
    return (x_THR * cos_T1R).add_(other_THR * sin_T1R).to(x_THR.dtype)
