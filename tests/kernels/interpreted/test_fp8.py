"""e4m3 by integer bits is e4m3 as torch has it, for every bit pattern and for every rounding."""

import numpy as np
import torch
import triton
import triton.language as tl

from interlock.plugins.attention.kernels.fp8 import decoded, encoded


@triton.jit
def decode_kernel(source, target, SIZE: tl.constexpr):
    at = tl.arange(0, SIZE)
    tl.store(target + at, decoded(tl.load(source + at)))


@triton.jit
def encode_kernel(source, target, SIZE: tl.constexpr):
    at = tl.arange(0, SIZE)
    tl.store(target + at, encoded(tl.load(source + at)))


def test_every_bit_pattern_decodes_to_its_number():
    bits = torch.arange(256, dtype=torch.uint8)
    numbers = torch.empty(256, dtype=torch.float16)
    decode_kernel[(1,)](bits, numbers, SIZE=256)
    want = bits.view(torch.float8_e4m3fn).to(torch.float16)
    torch.testing.assert_close(numbers, want, rtol=0, atol=0, equal_nan=True)


def test_numbers_encode_to_the_nearest_with_ties_to_even():
    every = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).float()
    every = every[every.isfinite()].sort().values
    ties = (every[1:] + every[:-1]) / 2
    beside = torch.cat([torch.nextafter(ties, torch.tensor(s * 1e9)) for s in (-1, 1)])
    random = torch.from_numpy(np.random.default_rng(0).uniform(-448, 448, 2000)).float()
    tiny = random * 2.0**-16
    numbers = torch.cat((every, ties, beside, random, tiny, torch.tensor([0.0, -0.0, torch.nan])))
    size = 1 << (len(numbers) - 1).bit_length()
    numbers = torch.nn.functional.pad(numbers, (0, size - len(numbers)))
    bits = torch.empty(size, dtype=torch.uint8)
    encode_kernel[(1,)](numbers, bits, SIZE=size)
    want = numbers.to(torch.float8_e4m3fn).view(torch.uint8)
    nan = numbers.isnan()
    assert torch.equal(bits[~nan], want[~nan])
    assert ((bits[nan] & 0x7F) == 0x7F).all()
