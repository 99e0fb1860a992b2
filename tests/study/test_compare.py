"""Two studies of the same cells: what changed between them, and what else did."""

import math
from dataclasses import replace

import pytest

from interlock.study.compare import Side, compare
from interlock.study.spec import Metric
from tests.study.made import factors, grid, observe, study

ARMS = factors(cache="none radix block")
MANIFEST = {"python": "3.11", "packages": {"torch": "2.9", "numpy": "2"}, "git": {"commit": "a"}}


def side(mean, cells=None, manifest=MANIFEST, **more):
    made = study(ARMS, repeats=4)
    cells = cells or grid(ARMS)
    return Side(made, tuple(cells), tuple(observe(made, cells, mean, **more)), manifest)


def faster(levels):
    return -0.1 * (levels["cache"] == "radix")


def of(comparison, cell):
    return next(one for one in comparison.changes if one.cell == cell)


def test_overrides_and_metrics_that_one_study_has_alone_are_named():
    old = [replace(cell, overrides=("a=1", "b=2")) for cell in grid(ARMS)]
    new = [replace(cell, overrides=("a=1", "b=3")) for cell in grid(ARMS)[:2]]
    first, second = side(lambda _: 0.0, old), side(lambda _: 0.0, new)
    more = replace(second.study, metrics=(*second.study.metrics, Metric("rate")))
    found = compare(first, replace(second, study=more))
    assert found.notes[-2:] == (
        "The same name with other overrides (only in the first b=2; only in the second b=3): "
        "cache=none, cache=radix.",
        "Metrics that one study has alone are not compared: only in the second rate.",
    )
    turned = [replace(cell, overrides=("b=2", "a=1")) for cell in old]
    (_, note) = compare(first, side(lambda _: 0.0, turned)).notes
    assert "(in another order)" in note


def test_equal_workloads_are_paired_repeat_by_repeat():
    first = side(lambda _: 0.0, sigma=0.002)
    found = compare(first, side(faster, sigma=0.002, seed=9))
    one = of(found, "cache=radix")
    assert one.paired
    assert one.estimate.num_pairs == 4
    assert one.estimate.value == pytest.approx(math.expm1(-0.1), abs=0.005)
    assert one.estimate.low < math.expm1(-0.1) < one.estimate.high
    assert one.estimate.p_adjusted < 0.05
    assert of(found, "cache=block").estimate.value == pytest.approx(0, abs=0.006)


def test_different_workloads_are_not_paired_and_the_notes_say_so():
    first = side(lambda _: 0.0, workload_sha256=lambda *_: "a")
    second = side(lambda _: 0.0, seed=5, workload_sha256=lambda *_: "b")
    found = compare(first, second)
    assert not any(one.paired for one in found.changes)
    assert all(one.estimate.low < 0 < one.estimate.high for one in found.changes)
    assert any("not paired" in note for note in found.notes)


def test_cells_of_one_study_alone_and_changed_overrides_are_listed():
    cells = grid(ARMS)
    other = [replace(cells[1], overrides=("cache=radix",)), cells[2]]
    found = compare(side(faster, cells=cells[:2]), side(faster, cells=other))
    assert found.only_first == ("cache=none",)
    assert found.only_second == ("cache=block",)
    assert {one.cell for one in found.changes} == {"cache=radix"}
    said = "other overrides (only in the second cache=radix): cache=radix."
    assert any(said in note for note in found.notes)


def test_what_differs_around_the_runs_is_listed():
    changed = {"python": "3.11", "packages": {"torch": "2.10", "numpy": "2"}, "git": None}
    found = compare(side(faster), side(faster, manifest=changed))
    assert found.differences == ("git.commit: a -> none", "packages.torch: 2.9 -> 2.10")


def test_one_run_of_each_says_a_difference_without_an_interval():
    one = side(faster)
    short = replace(one, observations=tuple(o for o in one.observations if o.repeat == 0))
    found = of(compare(short, short), "cache=radix")
    assert found.estimate.value == 0
    assert math.isnan(found.estimate.low)
