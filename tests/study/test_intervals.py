"""Intervals keep their coverage at few repeats, and false alarms stay at their level."""

import math

import numpy as np
import pytest

from interlock.study.bootstrap import measure
from interlock.study.corrections import holm
from interlock.study.layout import Layout
from interlock.study.noise import drift_of, floor_of, noise_of
from tests.study.made import TIME


@pytest.fixture(autouse=True)
def few_draws(monkeypatch):
    monkeypatch.setattr("interlock.study.bootstrap.DRAWS", 300)


def laid_out(values_CR, aa=()):
    num_cells, repeats = values_CR.shape
    cell_N, block_N = np.divmod(np.arange(num_cells * repeats), repeats)
    return Layout(
        TIME, tuple(f"c{n}" for n in range(num_cells)), tuple((r, "") for r in range(repeats)),
        values_CR.ravel(), cell_N, block_N, np.arange(values_CR.size, dtype=float), tuple(aa), 0,
    )  # fmt: skip


def against_first(num_cells, repeats):
    weights = np.zeros((num_cells - 1, num_cells, repeats))
    weights[:, 0] = -1 / repeats
    for cell in range(num_cells - 1):
        weights[cell, cell + 1] = 1 / repeats
    return weights.reshape(num_cells - 1, -1)


def measured(values_CR, seed=0):
    layout = laid_out(values_CR)
    rng = np.random.default_rng(seed)
    return measure(layout.values_N, noise_of(layout), against_first(*values_CR.shape), 0.95, rng)


def normal(rng, shape):
    return rng.standard_normal(shape)


def skewed(rng, shape):
    return np.exp(rng.standard_normal(shape))


def heavy(rng, shape):
    return rng.standard_t(3, shape)


def unequal(rng, shape):
    return np.linspace(0.3, 1.5, shape[0])[:, None] * rng.standard_normal(shape)


@pytest.mark.parametrize("shape", [(2, 3), (4, 3), (10, 5)])
@pytest.mark.parametrize("draw", [normal, skewed, heavy, unequal])
def test_intervals_cover_zero_as_often_as_they_say(draw, shape):
    rng, studies = np.random.default_rng(7), 200
    covered = alarms = 0
    for _ in range(studies):
        found = measured(draw(rng, shape) + rng.standard_normal(shape[1]) * 5)
        covered += sum(one.low <= 0 <= one.high for one in found)
        alarms += min(holm([one.p for one in found])) < 0.05
    # 200 studies of nominal 5 %: 10 alarms with a deviation of 3.1
    assert covered / (studies * (shape[0] - 1)) > 0.915
    assert alarms <= 20


def test_a_percentile_bootstrap_of_three_pairs_would_not_cover():
    rng, covered = np.random.default_rng(3), 0
    for _ in range(300):
        pairs = rng.standard_normal(3)
        means = rng.choice(pairs, (400, 3)).mean(axis=1)
        low, high = np.quantile(means, [0.025, 0.975])
        covered += low <= 0 <= high
    assert covered / 300 < 0.85


def test_two_cells_give_the_paired_t_test():
    first, second = np.array([[1.0, 3.0, 2.0], [1.4, 3.9, 2.2]])
    (found,) = measured(np.array([first, second]))
    gap = second - first
    t = gap.mean() / (gap.std(ddof=1) / math.sqrt(3))
    # the two-sided tail of Student's t with 2 degrees: 1 - t / sqrt(t^2 + 2)
    assert found.value == pytest.approx(gap.mean())
    assert found.p == pytest.approx(1 - t / math.sqrt(t * t + 2))
    half = 4.302653 * gap.std(ddof=1) / math.sqrt(3)
    assert (found.low, found.high) == pytest.approx((gap.mean() - half, gap.mean() + half))


def test_a_p_value_is_small_just_when_the_interval_leaves_zero_out():
    rng = np.random.default_rng(1)
    for _ in range(60):
        shape = (int(rng.integers(2, 7)), int(rng.integers(3, 6)))
        for one in measured(rng.standard_normal(shape) + np.arange(shape[0])[:, None] * 0.8):
            assert (one.p < 0.05) == (not one.low <= 0 <= one.high)


def test_many_equal_cells_make_each_interval_shorter_than_its_own_pairs_would():
    rng = np.random.default_rng(2)
    many, few = [], []
    for _ in range(40):
        values = rng.standard_normal((12, 3))
        many.append(measured(values)[0])
        few.append(measured(values[:2])[0])
    width = [np.median([one.high - one.low for one in of]) for of in (many, few)]
    assert width[0] < 0.7 * width[1]


def test_a_loud_cell_is_not_judged_by_quiet_ones():
    rng, covered = np.random.default_rng(5), 0
    for _ in range(120):
        values = rng.standard_normal((8, 5)) * np.array([0.1] * 7 + [3.0])[:, None]
        one = measured(values)[-1]
        covered += one.low <= 0 <= one.high
    assert covered / 120 > 0.89


def test_no_noise_at_all_gives_points():
    same, other = measured(np.array([[1.0, 2.0, 3.0], [1.0, 2.0, 3.0], [1.5, 2.5, 3.5]]))
    assert (same.low, same.high, same.p) == (0, 0, 1)
    assert (other.low, other.high, other.p) == pytest.approx((0.5, 0.5, 0))


def test_holm_is_the_step_down_of_its_paper():
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([]) == []
    assert holm([0.9, 0.8]) == [1.0, 1.0]


def test_the_noise_floor_holds_95_percent_of_differences_of_equal_cells():
    rng, inside, studies = np.random.default_rng(4), 0, 400
    for _ in range(studies):
        floor = floor_of(layout := laid_out(rng.standard_normal((4, 3))), noise_of(layout), 3)
        fresh = rng.standard_normal((2, 3)).mean(axis=1)
        inside += abs(fresh[1] - fresh[0]) <= floor.half_width
    assert 0.92 < inside / studies < 0.98


def test_pairs_that_differ_more_than_blocks_do_set_the_floor_alone():
    rng = np.random.default_rng(4)
    values = 0.01 * rng.standard_normal((6, 4))
    quiet = floor_of(laid_out(values), noise_of(laid_out(values)), 4)
    loud = laid_out(values, aa=(0.3, -0.4, 0.5, -0.2))
    floor = floor_of(loud, noise_of(loud), 4)
    assert floor.half_width > 5 * quiet.half_width
    assert "differ more than blocks" in floor.source


def test_drift_is_found_beside_blocks_of_different_workloads():
    rng = np.random.default_rng(6)
    place = rng.permuted(np.tile(np.arange(8.0), (5, 1)), axis=1) + 8 * np.arange(5)[:, None]
    values = 0.01 * place + 0.02 * rng.standard_normal((5, 8)) + rng.standard_normal(5)[:, None]
    layout = laid_out(values.T)
    slope, p = drift_of(Layout(**{**vars(layout), "place_N": place.T.ravel()}))
    assert slope == pytest.approx(0.01, abs=0.003)
    assert p < 1e-4
