"""When the noise floor is known, and what is said where it is not."""

import math

import pytest

from interlock.study.analyse import analyse
from tests.study.made import factors, grid, observe, study


def saves(levels):
    """What radix takes off the time."""
    return -0.2 if levels["cache"] == "radix" else 0.0


def test_a_single_pair_of_equal_runs_is_too_few_to_know_the_noise():
    one = factors(cache="none radix")
    made, cells = study(one, repeats=1), grid(one)
    found = analyse(made, cells, observe(made, cells, lambda _: 0.0, aa=True))
    assert math.isnan(found.noise[0].value)
    assert (found.noise[0].num_pairs, found.noise[0].is_known) == (1, False)
    assert found.noise[0].source.startswith("too few pairs: all that is known of the noise are 1")
    assert {one.verdict for one in found.contrasts} == {"too few pairs"}
    assert math.isnan(found.contrasts[0].estimate.value)


def test_two_repeats_of_two_cells_without_an_equal_pair_name_no_winner():
    one = factors(cache="none radix")
    made, cells = study(one, repeats=2), grid(one)
    found = analyse(made, cells, observe(made, cells, saves, sigma=1e-6))
    (cell,) = found.contrasts
    assert cell.estimate.value == pytest.approx(math.expm1(-0.2), abs=1e-3)
    assert cell.verdict == "too few pairs"
    assert "The noise floor is unknown" in cell.reason
    with_pairs = analyse(made, cells, observe(made, cells, saves, sigma=1e-6, aa=True))
    assert with_pairs.contrasts[0].verdict == "better"
