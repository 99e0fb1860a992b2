import numpy as np
import pytest

from interlock.core.streams import Purpose, philox, request_seed, uniform, uniforms
from interlock.core.testing.chi_square import assert_follows


@pytest.mark.parametrize(
    ("counter", "key", "block"),
    [
        ((0,) * 4, (0,) * 2, (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        (
            (0xFFFFFFFF,) * 4,
            (0xFFFFFFFF,) * 2,
            (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD),
        ),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ],
)
def test_philox_gives_the_known_answers_of_random123(counter, key, block):
    assert philox(counter, key) == block


@pytest.mark.parametrize("count", [0, 1, 16, 17, 300])
def test_vectorised_numbers_equal_scalar_ones_bit_for_bit(count):
    rng = np.random.default_rng(count)
    seeds = [*rng.integers(0, 2**64, count, dtype=np.uint64).tolist(), 2**64 - 1][:count]
    positions = [*rng.integers(0, 2**33, count).tolist(), 2**64 - 1][:count]
    for purpose, sample in ((Purpose.TARGET, 0), (Purpose.LENGTH, 2**32 - 1)):
        many = uniforms(seeds, positions, purpose, sample)
        one = [uniform(s, p, purpose, sample) for s, p in zip(seeds, positions, strict=True)]
        assert many.dtype == np.float64
        assert many.tolist() == one


def test_a_number_is_a_multiple_of_two_to_the_minus_53_below_one():
    numbers = uniforms(range(5000), [3] * 5000, Purpose.TARGET)
    assert 0 <= numbers.min() < numbers.max() < 1
    scaled = numbers * 2.0**53
    assert (scaled == np.floor(scaled)).all()
    assert (scaled.astype(np.int64) & 1).any()


def chi_square_cells(numbers, cells):
    counts = np.bincount((numbers * cells).astype(int), minlength=cells)
    assert_follows(counts.tolist(), [1 / cells] * cells)


@pytest.mark.parametrize("purpose", list(Purpose))
def test_numbers_are_uniform_along_positions_and_along_seeds(purpose):
    along_positions = uniforms([11] * 20_000, range(20_000), purpose)
    along_seeds = uniforms(range(20_000), [11] * 20_000, purpose)
    for numbers in (along_positions, along_seeds):
        chi_square_cells(numbers, 64)
        chi_square_cells(numbers * 2**24 % 1, 64)  # the low bits too


def test_neighbouring_keys_are_independent():
    seeds, positions = np.repeat(np.arange(150), 150), np.tile(np.arange(150), 150)
    base = uniforms(seeds.tolist(), positions.tolist(), Purpose.TARGET)
    neighbours = {
        "position": uniforms(seeds.tolist(), (positions + 1).tolist(), Purpose.TARGET),
        "seed": uniforms((seeds + 1).tolist(), positions.tolist(), Purpose.TARGET),
        "purpose": uniforms(seeds.tolist(), positions.tolist(), Purpose.DRAFT),
        "sample": uniforms(seeds.tolist(), positions.tolist(), Purpose.TARGET, 1),
        "swapped": uniforms((positions + 1000).tolist(), seeds.tolist(), Purpose.TARGET),
    }
    for other in neighbours.values():
        assert abs(np.corrcoef(base, other)[0, 1]) < 4.5 / 150  # 4.5 deviations of 1/sqrt(n)
        pairs = (base * 8).astype(int) * 8 + (other * 8).astype(int)
        assert_follows(np.bincount(pairs, minlength=64).tolist(), [1 / 64] * 64)


def test_request_seeds_differ_and_are_the_same_on_every_machine():
    seeds = {request_seed(run, index) for run in range(100) for index in range(100)}
    assert len(seeds) == 10_000
    assert all(0 <= seed < 2**64 for seed in seeds)
    assert request_seed(1, 23) != request_seed(12, 3)
    assert request_seed(0, 0) == 13725254029710755210


def test_positions_and_seeds_use_all_their_bits():
    base = uniform(0, 0, Purpose.TARGET)
    for bit in range(64):
        assert uniform(1 << bit, 0, Purpose.TARGET) != base
        assert uniform(0, 1 << bit, Purpose.TARGET) != base
