"""Quantised rows against e4m3 written out from its definition (OCP 8-bit floating point, 5.1)."""

import math
from bisect import bisect_left
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from interlock.plugins.attention.fp8 import FP8, LARGEST, dequantised, quantised


def value_of(code):
    """Sign, 4 bits of exponent with bias 7, 3 of fraction; all ones is NaN, nothing is infinite."""
    sign, exponent, fraction = code >> 7, code >> 3 & 15, code & 7
    if exponent == 15 and fraction == 7:
        return math.nan
    size = fraction * 2.0**-9 if exponent == 0 else (8 + fraction) * 2.0 ** (exponent - 10)
    return -size if sign else size


SIZES = [value_of(code) for code in range(127)]


def nearest(size):
    """The code of the number next to `size` >= 0, the even one of two that are as near."""
    above = min(bisect_left(SIZES, size), 126)
    below = max(above - 1, 0)
    up, down = SIZES[above] - size, size - SIZES[below]
    return above if up < down or (up == down and above % 2 == 0) else below


def naive(row):
    """(codes, scale) of one group of finite fp32 numbers: the least 2^k with max <= 448 2^k."""
    most = max(abs(x) for x in row)
    power = -126
    while most > 448 * 2.0**power:
        power += 1
    signs = [128 if math.copysign(1, x) < 0 else 0 for x in row]
    return [s + nearest(abs(x) / 2.0**power) for s, x in zip(signs, row, strict=True)], 2.0**power


def test_all_256_codes_read_back_as_the_numbers_they_stand_for():
    codes = torch.arange(256, dtype=torch.uint8)
    values = torch.tensor([value_of(code) for code in range(256)])
    numbers = ~values.isnan()
    assert numbers.sum() == 254
    for scale in (1.0, 2.0**-126, 2.0**-20, 2.0**119):
        read = dequantised(codes.view(FP8)[None], torch.tensor([scale]))[0]
        assert torch.equal(read[numbers], (values * scale)[numbers])


def test_every_number_between_codes_goes_to_the_nearer_one_and_ties_to_the_even_one():
    between = [(a + b) / 2 for a, b in pairwise(SIZES)]
    near = [np.nextafter(np.float32(x), np.float32(way)) for x in between for way in (0, 999)]
    row = [*SIZES, *between, *near]
    row += [-x for x in row]
    codes, scale = quantised(torch.tensor(row)[None])
    assert scale.item() == 1
    assert codes.view(torch.uint8)[0].tolist() == naive([np.float32(x).item() for x in row])[0]


FLOATS = st.floats(-(2.0**127), 2.0**127, width=32)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_any_group_has_the_codes_and_the_scale_of_the_definition(dtype):
    @settings(max_examples=150, deadline=None, derandomize=True, database=None)
    @given(rows=st.lists(st.lists(FLOATS, min_size=5, max_size=5), min_size=1, max_size=4),
           power=st.integers(-140, 120))  # fmt: skip
    def check(rows, power):
        size = torch.tensor(rows, dtype=torch.float64).abs().amax().clamp(min=1e-300)
        given_GN = (torch.tensor(rows, dtype=torch.float64) / size * 2.0**power).to(dtype)
        if dtype == torch.float16:
            given_GN = given_GN.clamp(-60000, 60000)
        codes, scales = quantised(given_GN)
        for row, code, scale in zip(given_GN.float().tolist(), codes, scales, strict=True):
            right, by = naive(row)
            assert (code.view(torch.uint8).tolist(), scale.item()) == (right, by)

    check()


def test_a_number_is_off_by_one_part_in_16_at_most_and_small_ones_by_a_step_of_the_group():
    rows = torch.from_numpy(np.random.default_rng(0).standard_normal((4000, 64)))
    codes, scales = quantised(rows)
    wrong = (dequantised(codes, scales).double() - rows).abs()
    assert (wrong <= torch.maximum(rows.abs() / 16, scales[:, None] * 2.0**-10)).all()
    assert 0.02 < (wrong.square().sum() / rows.square().sum()).sqrt() < 0.03
    assert (scales * 448 >= rows.abs().amax(-1)).all()
    assert (scales * 224 < rows.abs().amax(-1)).all()


@pytest.mark.parametrize("bad", [math.inf, -math.inf, math.nan, LARGEST * 1.01, 1e39])
def test_a_number_that_cannot_be_stored_makes_its_own_group_nan_and_no_other(bad):
    rows = torch.ones(3, 2, 4, dtype=torch.float64)
    rows[1, 0, 2] = bad
    read = dequantised(*quantised(rows))
    assert read[1, 0].isnan().all()
    read[1, 0] = 1
    assert torch.equal(read.double(), torch.ones(3, 2, 4, dtype=torch.float64))


def test_zeros_stay_zeros_and_the_smallest_numbers_do_not_become_large():
    rows = torch.tensor([[0.0, -0.0], [2.0**-149, 0.0], [2.0**-133, 2.0**-126]])
    codes, scales = quantised(rows)
    assert scales.isfinite().all()
    read = dequantised(codes, scales)
    assert torch.equal(read[0].view(torch.int32), rows[0].view(torch.int32))
    assert ((read - rows).abs() <= 2.0**-136).all()


def test_what_fp16_holds_reads_back_as_something_that_it_holds():
    rows = torch.tensor([[65504.0, 1.0], [-65504.0, 63500.0]], dtype=torch.float16)
    read = dequantised(*quantised(rows)).half()
    assert torch.equal(read, torch.tensor([[61440, 1], [-61440, 61440]]).half())


def test_last_bits_of_the_numbers_move_no_code():
    """Two orders of summation differ in the last bits; what is stored must not."""
    random = np.random.default_rng(1)
    rows = torch.from_numpy(random.standard_normal((20_000, 32)))
    moved = rows * (1 + torch.from_numpy(random.uniform(-1, 1, rows.shape)) * 2.0**-50)
    assert (moved != rows).float().mean() > 0.8
    for one, other in zip(quantised(rows), quantised(moved), strict=True):
        assert torch.equal(one.view(torch.uint8), other.view(torch.uint8))
