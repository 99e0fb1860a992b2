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


def exact_runs(made, cells, mean, exact=True):
    return observe(made, cells, mean, sigma=0.0, aa=True, exact=lambda _cell, _repeat: exact)


def test_virtual_time_without_noise_makes_every_difference_of_one_repeat_exact():
    two = factors(cache="none radix", spec="none ngram")
    made, cells = study(two, repeats=1), grid(two)

    def mean(levels):
        return saves(levels) + (0.1 if levels["spec"] == levels["cache"] == "none" else 0.0)

    found = analyse(made, cells, exact_runs(made, cells, mean))
    assert (found.noise[0].value, found.noise[0].is_known) == (0.0, True)
    radix = next(one for one in found.effects if one.what == "cache=radix")
    assert radix.verdict == "better"
    assert radix.estimate.value == pytest.approx(math.expm1(-0.25), abs=1e-12)
    assert radix.estimate.low == radix.estimate.high == radix.estimate.value
    both = next(one for one in found.contrasts if one.what == "cache=radix,spec=ngram")
    assert both.estimate.value == pytest.approx(math.expm1(-0.3), abs=1e-12)
    assert found.interactions[0].estimate.value == pytest.approx(math.expm1(0.1), abs=1e-12)


def test_equal_cells_in_virtual_time_are_called_equal():
    one = factors(cache="none radix")
    made, cells = study(one, repeats=1), grid(one)
    (cell,) = analyse(made, cells, exact_runs(made, cells, lambda _: 0.0)).contrasts
    assert (cell.verdict, cell.reason) == ("no difference shown", "The two are equal.")


def test_nothing_is_exact_where_one_run_was_timed_or_equal_runs_differ():
    one = factors(cache="none radix")
    made, cells = study(one, repeats=1), grid(one)
    timed = exact_runs(made, cells, saves, exact=False)
    assert analyse(made, cells, timed).contrasts[0].verdict == "too few pairs"
    runs = exact_runs(made, cells, saves)
    assert analyse(made, cells, [*runs[:-1], timed[-1]]).contrasts[0].verdict == "too few pairs"
    runs = observe(made, cells, saves, sigma=0.01, aa=True, exact=lambda *_: True)
    assert analyse(made, cells, runs).contrasts[0].verdict == "too few pairs"


def test_an_effect_is_exact_without_conditions_only_where_every_combination_ran():
    three = factors(cache="none radix", spec="none ngram", order="arrival priority")
    made, cells = study(three, repeats=1), grid(three)

    def mean(levels):
        others = {levels["spec"], levels["order"]}
        return saves(levels) * (3.0 if others == {"ngram", "priority"} else 1.0)

    found = analyse(made, cells, exact_runs(made, cells, mean))
    radix = next(one for one in found.effects if one.what == "cache=radix")
    assert radix.estimate.value == pytest.approx(math.expm1(-0.3), abs=1e-12)
    assert radix.reason == "Exact for this workload: in virtual time equal runs are equal."
    found = analyse(made, cells[:-1], exact_runs(made, cells[:-1], mean))
    radix = next(one for one in found.effects if one.what == "cache=radix")
    assert radix.estimate.value != pytest.approx(math.expm1(-0.3), abs=1e-3)
    assert radix.reason.startswith("Exact for this workload if the terms that are not estimated")
    assert found.contrasts[-1].reason.startswith("Exact for this workload: ")
