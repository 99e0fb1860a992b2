"""Rows in e4m3 with power-of-two scales: how they are made, read back, and what that costs.

A group of N numbers (a token's key or value head, or up to 128 latents) is stored as N codes and
one scale s = 2^k, the least power of two with max |x| <= 448 s, so nothing saturates:

    code = e4m3(fp32(x) / s), to nearest, ties to even;  read back: code * s

Powers of two (as FlashMLA's fp8 latents, which fp8_ds_mla stores in groups of 128) instead of
s = max|x| / 448: dividing and multiplying by them is exact, so what is read is e4m3's own rounding
and nothing else, the same in every dtype and on every device. And it is stable: the last bits of x,
which depend on how a step was batched, move s only where max |x| crosses 448 2^k exactly, and then
all codes but subnormal ones keep their value. With s = max|x| / 448 every last bit of the largest
number moves all others. The price is range below, not precision: one binary order of 15.

A group with a number that is not finite, or beyond 448 2^119, reads back as NaN: its request fails
by itself, nobody else reads it. Zeros stay zeros; below 2^-118 codes become subnormal.

Legend: G groups, N numbers of a group.
"""

import torch
from torch import Tensor

FP8 = torch.float8_e4m3fn
FP8_NAME = "float8_e4m3fn"
LARGEST = 448 * 2.0**119
"""Largest magnitude that is stored: its scale times 256 is still an fp32 number."""
HALF_LARGEST = 61440.0
"""Largest e4m3 number (with a scale) that fp16 holds; the next one would read back as infinity."""


def quantised(rows_GN: Tensor) -> tuple[Tensor, Tensor]:
    """Codes [..., G, N] in e4m3 and fp32 scales [..., G] of rows of any float dtype."""
    wide_GN = rows_GN.to(torch.float32)
    if rows_GN.dtype == torch.float16:
        finite = wide_GN.clamp(-HALF_LARGEST, HALF_LARGEST)
        wide_GN = torch.where(wide_GN.isinf(), wide_GN, finite)
    most_G = wide_GN.abs().amax(-1)
    # 448 is 1.75 * 2^8: the exponent of most / 448 rounds up where the fraction exceeds 0.75.
    exponent_G = ((most_G.view(torch.int32) + 0x1FFFFF) >> 23) - 8
    scale_G = (exponent_G.clamp(min=1) << 23).view(torch.float32)
    scale_G = scale_G.masked_fill(~(most_G <= LARGEST), torch.nan)
    return (wide_GN * scale_G.reciprocal()[..., None]).to(FP8), scale_G


def dequantised(codes_GN: Tensor, scale_G: Tensor) -> Tensor:
    """fp32 [..., G, N]: code times scale, exactly."""
    if not codes_GN.is_cpu:
        return codes_GN.to(torch.float32).mul_(scale_G[..., None])
    # torch's own cast is 5 times slower on a CPU. Moving the sign, exponent and fraction to where
    # fp16 has them gives the value times 2^-8, for subnormal codes too.
    bits_GN = codes_GN.view(torch.int8).to(torch.int16)
    half_GN = bits_GN.bitwise_and(0x7F).bitwise_left_shift_(7)
    half_GN.bitwise_or_(bits_GN.bitwise_and_(-0x8000))
    return half_GN.view(torch.float16).to(torch.float32).mul_((scale_G * 256)[..., None])
