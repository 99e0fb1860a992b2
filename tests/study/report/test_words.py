"""How figures and names read."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from interlock.study.findings import Estimate
from interlock.study.report.words import (
    change,
    corrected,
    effect,
    figure,
    interval,
    label_of,
    listed,
    printable,
    shortened,
    titled,
)
from interlock.study.spec import Metric

RATIO, DIFFERENCE = Metric("mean_ttft_ms"), Metric("rate", scale="difference")


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "-"), (math.nan, "-"), (math.inf, "inf"), (0.0, "0"), (12345.6, "12,346"),
     (12.3456, "12.35"), (0.00123456, "0.001235"), (-3.0, "-3"), (1e-9, "1e-09")],
)  # fmt: skip
def test_a_figure_has_four_digits_or_a_dash(value, text):
    assert figure(value) == text


def test_effects_are_per_cent_on_the_ratio_scale_and_differences_else():
    estimate = Estimate(-0.1234, -0.2, -0.05, 0.0, 0.0, 3)
    assert effect(estimate, RATIO) == "-12.3 % [-20.0, -5.00]"
    assert effect(estimate, DIFFERENCE) == "-0.123 [-0.2, -0.05]"
    assert change(math.nan, RATIO) == "-"
    assert effect(Estimate(math.nan, math.nan, math.inf, 1, 1, 0), RATIO) == "- [-, +inf]"


def test_what_was_not_estimated_has_no_interval_and_no_p_value():
    nothing = Estimate(math.nan, math.nan, math.nan, 1.0, 1.0, 1)
    assert (effect(nothing, RATIO), corrected(nothing)) == ("-", "-")
    assert corrected(Estimate(-0.1, -0.2, 0.1, 0.2, 1.0, 3)) == "1.000"


def test_what_is_zero_but_for_rounding_is_written_as_zero():
    assert effect(Estimate(-2e-16, -0.005, 0.005, 1, 1, 3), DIFFERENCE) == "+0 [-0.005, +0.005]"
    assert effect(Estimate(1e-17, -1e-17, 2e-17, 1, 1, 3), RATIO) == "+0.00 % [-0.00, +0.00]"
    assert effect(Estimate(0.0, 0.0, 0.0, 1, 1, 3), DIFFERENCE) == "+0"
    assert effect(Estimate(1e-12, math.nan, math.nan, 1, 1, 1), DIFFERENCE) == "+1e-12 [-, -]"


def test_an_exact_effect_has_no_interval():
    assert effect(Estimate(0.25, 0.25, 0.25, 0, 0, 1), RATIO) == "+25.0 %"


def test_an_interval_without_ends_or_with_one_value_is_empty():
    assert interval(2.0, 2.0) == ""
    assert interval(None, math.nan) == ""
    assert interval(1.0, None) == "[1, -]"


def test_metrics_have_names_and_units_for_people():
    assert titled("p99_ttft_ms") == "P99 TTFT (ms)"
    assert titled("output_throughput") == "output throughput (tokens/s)"
    assert titled("spec.strange") == label_of("spec.strange") == "spec.strange"


@given(st.text())
def test_what_is_printable_has_no_character_that_controls(text):
    clean = printable(text)
    assert all(character.isprintable() or ord(character) > 127 for character in clean)
    clean.encode("utf-8")
    assert "\u202e" not in clean


@given(st.text(min_size=1), st.integers(1, 40))
def test_a_shortened_text_keeps_its_ends(text, most):
    short = shortened(text, most)
    assert len(short) <= most
    assert short == text or "…" in short


def test_long_lists_of_names_say_how_many_more_there_are():
    assert listed(["a", "b", "c"], 2) == "a, b and 1 more"
    assert listed(["a"], 2) == "a"
