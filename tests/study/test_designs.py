"""Designs as sets of cells: what each promises, for factors of any numbers of levels."""

import itertools
from math import prod

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from interlock.study.cells import LONGEST_ID, cell_id
from interlock.study.covering import covering_rows, pairs_in, pairs_of
from interlock.study.designs import DESIGNS, aliases, cells_of, design_problems
from interlock.study.fractions import (
    _merit_by_runs,
    _word_lengths,
    fraction_rows,
    regular_rows,
    resolution,
)
from interlock.study.order import run_order
from interlock.study.spec import Factor, Level, Study

SIZES = st.lists(st.integers(2, 4), min_size=1, max_size=5)
NAMES = "abcdefgh"


def study_of(sizes, design, **options):
    factors = tuple(
        Factor(name, tuple(Level(f"{at}", (f"{name}.x={at}",)) for at in range(size)))
        for name, size in zip(NAMES, sizes, strict=False)
    )
    return Study("s", factors, design, base=("b=1",), design_options=options)


def rows_of(study):
    return [tuple(int(cell.levels[f.name]) for f in study.factors) for cell in cells_of(study)]


@given(SIZES, st.sampled_from([name for name in DESIGNS if name != "latency_curve"]))
@settings(max_examples=60, deadline=None)
def test_every_design_gives_each_cell_once_with_the_baseline_first(sizes, design):
    study = study_of(sizes, design)
    if design_problems(study):
        return
    cells = cells_of(study)
    assert set(cells[0].levels.values()) == {"0"}
    assert len({cell.id for cell in cells}) == len(cells)
    for cell in cells:
        own = tuple(f"{name}.x={level}" for name, level in cell.levels.items())
        assert cell.overrides == ("b=1", *own)


@given(SIZES)
def test_one_at_a_time_differs_from_the_baseline_in_one_factor(sizes):
    rows = rows_of(study_of(sizes, "one_at_a_time"))
    assert len(rows) == 1 + sum(size - 1 for size in sizes)
    assert all(sum(level > 0 for level in row) == 1 for row in rows[1:])


@given(st.integers(1, 6))
def test_leave_one_out_and_add_one_step_through_the_factors(count):
    left_out = rows_of(study_of([2] * count, "leave_one_out"))
    assert set(left_out) >= {tuple(int(i != j) for i in range(count)) for j in range(count)}
    assert (1,) * count in left_out
    added = rows_of(study_of([2] * count, "add_one"))
    assert added == [(1,) * n + (0,) * (count - n) for n in range(count + 1)]


@given(st.lists(st.integers(2, 3), min_size=1, max_size=4))
@settings(max_examples=20, deadline=None)
def test_a_full_factorial_is_the_product(sizes):
    study = study_of(sizes, "full_factorial")
    assert sorted(rows_of(study)) == sorted(itertools.product(*map(range, sizes)))
    assert not aliases(study, cells_of(study))


@pytest.mark.parametrize("sizes", [[2, 2], [2, 3], [3, 2, 2]])
def test_a_level_refused_in_every_cell_aliases_nothing(sizes):
    study = study_of(sizes, "full_factorial")
    factor = study.factors[-1]
    left = [c for c in cells_of(study) if c.levels[factor.name] != factor.levels[-1].name]
    assert not aliases(study, left)
    single = [c for c in left if c.levels[study.factors[0].name] == study.factors[0].levels[0].name]
    assert not aliases(study, single)


def test_levels_that_are_left_are_aliased_as_before():
    """Two of three levels in each cell of a half fraction, whose third factor is their product."""
    study = study_of([2, 2, 3], "full_factorial")
    names = [[level.name for level in factor.levels] for factor in study.factors]
    keys = [factor.name for factor in study.factors]

    def half(cell):
        a, b, c = (of.index(cell.levels[key]) for of, key in zip(names, keys, strict=True))
        return c == (a ^ b)

    said = aliases(study, [cell for cell in cells_of(study) if half(cell)])
    assert f"{keys[2]} is aliased with {keys[0]} x {keys[1]}" in said


@given(SIZES)
def test_pairwise_rows_cover_every_pair_of_levels_in_few_rows(sizes):
    rows = covering_rows(sizes)
    if len(sizes) > 1:
        assert set().union(*map(pairs_in, rows)) == pairs_of(sizes)
        largest = sorted(sizes)[-2:]
        assert len(rows) <= 2.5 * prod(largest)
    else:
        assert rows == [(level,) for level in range(sizes[0])]


def test_three_factors_of_five_levels_need_far_fewer_cells_than_all():
    assert 25 <= len(rows_of(study_of([5, 5, 5], "pairwise"))) <= 32


@pytest.mark.parametrize(
    ("factors", "base", "known"),
    [(3, 2, 3), (4, 3, 4), (5, 4, 5), (6, 5, 6), (7, 3, 3), (7, 4, 4), (8, 4, 4), (6, 3, 3)],
)
def test_regular_fractions_reach_the_resolution_of_the_tables(factors, base, known):
    """Box, Hunter & Hunter, table 12.15."""
    assert resolution(factors, base) == known
    signs = 1 - 2 * np.array(regular_rows(factors, base))
    for size in range(1, known):
        for columns in itertools.combinations(range(factors), size):
            assert signs[:, columns].prod(axis=1).sum() == 0, "a word shorter than the resolution"


@given(st.integers(2, 4), st.integers(1, 7), st.randoms(use_true_random=False))
@settings(max_examples=40, deadline=None)
def test_the_words_of_a_fraction_are_counted_the_same_from_its_runs(base, added, random):
    options = [w for n in range(2, base + 1) for w in itertools.combinations(range(base), n)]
    words = random.sample(options, min(added, len(options)))
    count = base + len(words)
    lengths = _word_lengths(words, count, base)
    assert _merit_by_runs(words, count, base) == (min(lengths), -lengths.count(min(lengths)))


def test_many_factors_in_few_runs_are_found_at_once():
    signs = 1 - 2 * np.array(regular_rows(31, 5))
    assert not (signs.T @ signs - 32 * np.eye(31)).any(), "columns that are not orthogonal"
    assert resolution(24, 6) == 4


def test_a_regular_fraction_begins_with_the_baseline_and_says_what_it_confounds():
    study = study_of([2] * 4, "fractional_factorial", runs="8")
    cells = cells_of(study)
    assert len(cells) == 8
    said = aliases(study, cells)
    assert set(said) == {
        "a x b is aliased with c x d",
        "a x c is aliased with b x d",
        "a x d is aliased with b x c",
    }


@given(st.lists(st.integers(2, 4), min_size=2, max_size=4), st.integers(0, 3))
@settings(max_examples=30, deadline=None)
def test_a_mixed_fraction_estimates_every_main_effect(sizes, seed):
    rows = fraction_rows(sizes, None, seed)
    assert (0,) * len(sizes) in rows
    assert len(set(rows)) == len(rows) <= prod(sizes)
    columns = [np.ones(len(rows))]
    for at, size in enumerate(sizes):
        columns += [np.array([row[at] == level for row in rows]) for level in range(1, size)]
    assert np.linalg.matrix_rank(np.array(columns, float)) == len(columns)


def test_nine_runs_of_four_factors_of_three_levels_are_an_orthogonal_array():
    rows = fraction_rows([3, 3, 3, 3], 9, 0)
    for i, j in itertools.combinations(range(4), 2):
        assert len({(row[i], row[j]) for row in rows}) == 9


def test_too_few_runs_for_the_main_effects_are_refused_with_the_number():
    (problem,) = design_problems(study_of([2, 3, 3], "fractional_factorial", runs="5"))
    assert "runs='5' is not from 6" in problem


@given(SIZES, st.integers(1, 4), st.integers(0, 9))
def test_each_block_holds_every_cell_once_and_the_baseline_twice(sizes, repeats, seed):
    cells = cells_of(study_of(sizes, "one_at_a_time"))
    order = run_order(cells, repeats, seed)
    assert [place.number for place in order] == list(range(len(order)))
    assert len({place.folder for place in order}) == len(order)
    size = len(cells) + 1
    for repeat in range(repeats):
        block = order[repeat * size : (repeat + 1) * size]
        assert {place.repeat for place in block} == {repeat}
        ids = sorted(place.cell.id for place in block)
        assert ids == sorted([*(cell.id for cell in cells), cells[0].id])
    assert order == run_order(cells, repeats, seed)


def test_the_order_of_blocks_and_seeds_differs():
    cells = cells_of(study_of([4, 4], "full_factorial"))
    order = run_order(cells, 2, 0)
    assert [p.cell.id for p in order[:17]] != [p.cell.id for p in order[17:]]
    assert [p.cell.id for p in order] != [p.cell.id for p in run_order(cells, 2, 1)]


@given(st.dictionaries(st.text(min_size=1), st.text(min_size=1, max_size=60), min_size=1))
def test_a_cells_id_names_a_folder_anywhere(levels):
    found = cell_id(levels)
    assert len(found.encode()) <= LONGEST_ID + 9
    assert not set(found) & set('/\\:*?"<>| \n\0')
    assert found not in (".", "..")
