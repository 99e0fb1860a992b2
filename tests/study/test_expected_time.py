"""What a dry run says of a study's duration: the arithmetic, and what it measures."""

from dataclasses import replace

from interlock.study.expected_time import Amount, Measured, amount_of, expected_s, sampled
from interlock.study.plan import Judged, StudyPlan
from interlock.study.spec import Cell
from tests.study.made import factors, grid, study


def test_the_range_is_from_all_runs_as_the_fastest_to_all_as_the_slowest_with_the_start():
    measured = Measured(start_s=6.0, each_s=(2.0, 3.5, 2.5))
    assert expected_s(measured, Amount(runs=10)) == (6 + 20, 6 + 35)
    assert expected_s(measured, Amount(runs=10, at_once=2)) == (6 + 10, 6 + 17.5)
    assert expected_s(measured, Amount(runs=11, at_once=2)) == (6 + 12, 6 + 21)


def test_quality_is_measured_once_of_every_lossy_cell_and_the_baseline():
    measured = Measured(start_s=0.0, each_s=(2.0,), quality_s=5.0)
    assert expected_s(measured, Amount(runs=4, quality_runs=3)) == (8 + 15, 8 + 15)
    assert expected_s(measured, Amount(runs=4, quality_runs=3, at_once=2)) == (4 + 10, 4 + 10)


def test_measured_cells_are_the_baseline_and_others_to_the_last():
    cells = [Cell(f"c{at}", {}, ()) for at in range(10)]
    assert sampled(cells[:3]) == cells[:3]
    assert [cell.id for cell in sampled(cells)] == ["c0", "c3", "c6", "c9"]


def test_runs_are_counted_with_the_second_baseline_and_those_of_a_search_to_its_end():
    of = factors(cache="none radix", spec="none ngram eagle")
    judged = [Judged(cell, lossy="eagle" in cell.id) for cell in grid(of)]
    judged.append(Judged(Cell("refused", {}, ()), problems=("it is",), lossy=True))
    plan = StudyPlan(study(of, repeats=2), tuple(judged))
    assert amount_of(plan, at_once=2) == Amount(runs=2 * 7, quality_runs=3, at_once=2)
    options = {"trials": "5", "confirm": "1"}
    search = replace(study(of, repeats=2), design="search", design_options=options)
    plan = StudyPlan(search, (judged[0],))
    assert amount_of(plan, at_once=1) == Amount(runs=2 * (2 + 5) + 2 * (2 + 1))
