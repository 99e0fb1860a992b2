"""What a terminal shows of a study."""

import io
import re
from dataclasses import replace

import pytest
from rich.console import Console

from interlock.study.report.export import cell_rows
from interlock.study.report.page import page_of
from interlock.study.report.table import print_results


def shown(results, width=120, **options):
    console = Console(width=width, file=io.StringIO(), force_terminal=False)
    print_results(console, results, **options)
    return console.file.getvalue()


@pytest.mark.parametrize("width", [40, 80, 160])
def test_every_study_is_shown_within_the_width_of_the_terminal(any_study, width):
    from rich.cells import cell_len

    assert all(cell_len(line) <= width for line in shown(any_study, width).splitlines())


def test_a_lossy_cell_shows_its_quality_and_its_share_of_equal_tokens_even_where_it_is_all(small):
    first, second, *rest = small.findings.cells
    lossy = replace(first, quality={"perplexity": 12.5}, equal_tokens=1.0)
    cells = (lossy, replace(second, equal_tokens=1.0), *rest)
    results = replace(small, findings=replace(small.findings, cells=cells))
    text = shown(results, 200)
    assert "100.0% of tokens equal perplexity 12.5" in text
    assert text.count("of tokens equal") == 1
    assert "100.0% of tokens equal" in page_of(results, ())
    rows = cell_rows(results)
    assert [row["quality:perplexity"] for row in rows[:2]] == [12.5, None]


def test_what_stands_in_brackets_beside_a_median_is_said_to_be_the_range_of_the_runs(small):
    assert "Cells: medians [least, most] of their runs" in shown(small, 200)


def test_cells_show_medians_with_intervals_and_effects_show_their_verdicts(small):
    text = shown(small, 200)
    best = small.findings.cells[0]
    assert f"{best.medians['mean_ttft_ms']:.4g} [{best.lows['mean_ttft_ms']:.4g}" in text
    for effect in small.findings.effects:
        row = next(line for line in text.splitlines() if line.startswith(effect.what + " "))
        assert effect.verdict in row or effect.metric != "mean_ttft_ms"
        assert effect.reason in text


def test_refused_cells_failed_runs_notes_and_the_noise_floor_are_shown(small, hostile):
    text = shown(small, 200)
    assert "1 cell refused" in text
    assert small.refusals[0].problems[0] in text
    assert small.findings.notes[0] in text
    assert "3.00 %" in text
    assert "8 runs failed" in shown(hostile, 200)


def test_every_metric_is_shown_on_a_narrow_terminal(many):
    text = " ".join(shown(many, 50).split())
    for word in ("TTFT", "TPOT", "goodput", "occupancy", "hit rate"):
        assert (word in text) == (word != "goodput")


def test_only_some_of_many_cells_are_shown_and_how_many_are_not_is_said(many):
    text = shown(many, 160, most=10)
    assert "90 cells between these are not shown" in text
    assert "smaller ones are in findings.csv" in text
    told = re.search(r"Other cells, over all metrics: (\d+) no difference shown", text)
    shown_not = [c for c in many.findings.contrasts if c.verdict == "no difference shown"]
    assert int(told[1]) == len(shown_not)


def test_no_name_moves_the_cursor_or_is_read_as_markup(hostile):
    text = shown(hostile, 200)
    assert not any(bad in text for bad in ("\x1b", "\0", "\u202e"))
    assert "<script>" in text


def test_a_study_without_a_figure_says_so(unsuccessful, refused):
    assert "Every run failed" in shown(unsuccessful) or "every run failed" in shown(unsuccessful)
    assert "No cell ran" in shown(refused)


def test_seams_that_acted_in_no_cell_are_not_repeated_beside_each(small):
    first, *rest = (replace(c, inert=("scheduler/victim",)) for c in small.findings.cells)
    cells = (replace(first, inert=("scheduler/victim", "spec")), *rest)
    text = shown(replace(small, findings=replace(small.findings, cells=cells)), 160)
    assert "victim" not in text
    assert text.count("inert: spec") == 1


def test_a_noise_floor_of_too_few_pairs_is_said_to_be_one(few):
    rows = [line for line in shown(few, 200).splitlines() if line.endswith("one A/A pair")]
    assert len(rows) == len(few.findings.noise)
    assert all("too few pairs  1  " in row for row in rows)
