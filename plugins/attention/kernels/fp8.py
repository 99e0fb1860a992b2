"""fp8 e4m3 (OCP 8-bit floating point, revision 1.0) by integer bits, on devices without it as well.

A stored row is `bits` (uint8) and one fp32 scale a token and head: value = e4m3(bits) * scale.
sm_80 has no instructions for this type, and Triton's interpreter rounds towards zero.
"""

import triton
import triton.language as tl


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
def scale_of(rows):
    """fp32 [rows]: amax / 448 of each row of [rows, size]; 1 for a row of zeros."""
    most = tl.max(tl.abs(rows), axis=1)
    return tl.where(most == 0.0, 1.0, tl.div_rn(most, 448.0))
