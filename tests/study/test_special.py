"""The functions behind p values equal mpmath's, which shares no code with them."""

import math

import pytest

from interlock.study.special import (
    digamma,
    f_upper,
    t_quantile,
    t_two_sided,
    trigamma,
    trigamma_inverse,
)

mpmath = pytest.importorskip("mpmath")
DEGREES = (0.7, 1, 2, 5.5, 38, 1000)


@pytest.mark.parametrize("df", DEGREES)
@pytest.mark.parametrize("t", [0.0, 1e-6, 0.3, 2.0, 9.0, 60.0])
def test_the_tails_of_students_t_are_mpmaths(t, df):
    exact = mpmath.betainc(df / 2, 0.5, 0, df / (df + t * t), regularized=True)
    assert t_two_sided(t, df) == pytest.approx(float(exact), rel=1e-9)
    assert t_two_sided(-t, df) == t_two_sided(t, df)


@pytest.mark.parametrize("df", [*DEGREES, math.inf])
@pytest.mark.parametrize("confidence", [0.5, 0.95, 0.9999])
def test_a_quantile_leaves_what_it_says_in_the_tails(confidence, df):
    assert t_two_sided(t_quantile(confidence, df), df) == pytest.approx(1 - confidence, rel=1e-7)


def test_known_quantiles_of_tables():
    assert t_quantile(0.95, 2) == pytest.approx(4.302653, abs=1e-6)
    assert t_quantile(0.95, math.inf) == pytest.approx(1.959964, abs=1e-6)


@pytest.mark.parametrize("x", [0.1, 0.5, 1.0, 7.9, 8.0, 123.0])
def test_polygammas_are_mpmaths_and_the_inverse_inverts(x):
    assert digamma(x) == pytest.approx(float(mpmath.digamma(x)), rel=1e-8)
    assert trigamma(x) == pytest.approx(float(mpmath.polygamma(1, x)), rel=1e-8)
    assert trigamma_inverse(trigamma(x)) == pytest.approx(x, rel=1e-8)


def test_the_tail_of_f_is_the_square_of_students_with_one_degree():
    assert f_upper(2.5**2, 1, 7) == pytest.approx(t_two_sided(2.5, 7))
    assert f_upper(math.inf, 3, 7) == 0
