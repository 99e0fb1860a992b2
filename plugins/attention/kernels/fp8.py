"""e4m3 by integer bits, the same codes and scales as `interlock.plugins.attention.fp8` makes.

sm_80 has no instructions for this type, and Triton's interpreter rounds towards zero.
"""

import triton
import triton.language as tl

LARGEST = tl.constexpr(448 * 2.0**119)
HALF_LARGEST = tl.constexpr(61440.0)
"""As there."""


@triton.jit
def decoded(bits):
    """uint8 -> fp16, exactly. An e4m3 number is an fp16 number of the same bits times 2^8."""
    narrow = bits.to(tl.uint16)
    half = ((narrow & 0x80) << 8) | ((narrow & 0x7F) << 7)
    value = half.to(tl.float16, bitcast=True) * 256.0
    return tl.where((narrow & 0x7F) == 0x7F, float("nan"), value)


@triton.jit
def encoded(value):
    """fp32 in -448 .. 448, or NaN -> uint8, to the nearest, ties to even.

    Above 2^-6 the exponent is rebiased and the mantissa rounded to three bits; below, numbers are
    multiples of 2^-9, which is what fp32 rounds to when 2^14 is added.
    """
    wide = value.to(tl.uint32, bitcast=True)
    sign = (wide >> 24) & 0x80
    size = wide & 0x7FFFFFFF
    normal = ((size + 0x7FFFF + ((size >> 20) & 1)) >> 20) - 960
    raised = size.to(tl.float32, bitcast=True) + 16384.0
    small = raised.to(tl.uint32, bitcast=True) - 0x46800000
    code = tl.where(size < 0x3C800000, small, normal)
    code = tl.where(size > 0x7F800000, 0x7F, code)
    return (sign | code).to(tl.uint8)


@triton.jit
def scales_of(rows):
    """fp32 [rows] of fp32 [rows, size]: the least power of two with max |x| <= 448 scale, and its
    reciprocal; NaN for a row that cannot be stored.

    448 is 1.75 * 2^8: the exponent of max / 448 rounds up where the fraction exceeds 0.75.
    """
    most = tl.max(tl.where(rows != rows, float("inf"), tl.abs(rows)), axis=1)
    exponent = ((most.to(tl.int32, bitcast=True) + 0x1FFFFF) >> 23) - 8
    exponent = tl.maximum(exponent, 1)
    scale = (exponent << 23).to(tl.float32, bitcast=True)
    inverse = ((254 - exponent) << 23).to(tl.float32, bitcast=True)
    stored = most <= LARGEST
    return tl.where(stored, scale, float("nan")), tl.where(stored, inverse, float("nan"))
