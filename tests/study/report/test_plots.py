"""Plots of studies as files."""

import math
import sys
import xml.etree.ElementTree as ET
from dataclasses import replace

import numpy as np
import pytest

from interlock.core.errors import RunFolderError
from interlock.study.analyse import analyse
from interlock.study.report.export import MissingExtraError
from interlock.study.report.plot_effects import _signed
from interlock.study.report.plots import plots_of, write_plots
from interlock.study.report.results import Results
from interlock.study.report.runs import (
    acceptance,
    binned,
    latencies_ms,
    occupancy,
    request_times,
    timeline,
)
from interlock.study.report.style import line_style, svg_of
from interlock.study.spec import Factor, Level, Metric
from tests.full_disk import full_disk
from tests.study.made import factors, grid, observe, study

RUN_PLOTS = ["latency_cdfs", "steps", "kv_occupancy", "acceptance"]


def named(results):
    return {plot.name: plot for plot in plots_of(results)}


def test_a_study_with_runs_has_every_plot_as_png_and_svg(small_with_runs, tmp_path):
    pytest.importorskip("matplotlib")
    plots = plots_of(small_with_runs)
    assert [p.name for p in plots] == ["effects", "interactions", "pareto", *RUN_PLOTS]
    paths = write_plots([plots[0], *plots[2:4]], tmp_path)
    assert [path.read_bytes()[:4] for path in paths[::2]] == [b"\x89PNG"] * 3
    texts = [" ".join(ET.parse(path).getroot().itertext()) for path in paths[1::2]]
    assert "change (%)" in texts[0]
    assert "output throughput (tokens/s)" in texts[1]
    assert "time to first token (ms)" in texts[2]


def test_a_study_of_100_cells_says_what_its_plots_leave_out(many, many_with_runs):
    plots = named(many_with_runs)
    assert "4 metrics not drawn" in plots["effects"].about
    assert "93 cells not drawn" in plots["latency_cdfs"].about
    assert "94 cells not drawn" in plots["steps"].about
    assert all(len(plot.legend) <= 13 and len(plot.panels) <= 6 for plot in plots.values())
    drawn = [name for name, _ in plots["latency_cdfs"].legend]
    assert drawn[0] == f"{many.findings.baseline} (baseline)"


def test_studies_without_figures_have_no_plots(refused, unsuccessful, alone):
    assert not plots_of(refused)
    assert not plots_of(unsuccessful)
    assert not plots_of(alone)


def test_names_and_figures_that_break_careless_plots_are_drawn_as_text(hostile):
    pytest.importorskip("matplotlib")
    svg = svg_of(named(hostile)["effects"].panels[0], "x")
    assert "<script" not in svg
    ids = [line for line in svg.split('id="')[1:]]
    assert ids
    assert all(one.startswith("x-") for one in ids)


@pytest.mark.parametrize("odd", [math.nan, -math.inf, 1e307])
def test_estimates_that_no_axis_holds_are_drawn_without_a_warning(small, odd):
    pytest.importorskip("matplotlib")
    found = small.findings

    def strange(one):
        return replace(one, estimate=replace(one.estimate, value=odd, low=-odd, high=odd))

    first = found.cells[0]
    cells = (replace(first, medians=dict.fromkeys(first.medians, odd)), *found.cells[1:])
    changed = replace(
        found,
        effects=(strange(found.effects[0]), *found.effects[1:]),
        interactions=tuple(map(strange, found.interactions)),
        noise=tuple(replace(one, value=odd) for one in found.noise),
        cells=cells,
    )
    plots = plots_of(replace(small, findings=changed))
    assert {"effects", "interactions"} <= {plot.name for plot in plots}
    drawings = [svg_of(panel, "x") for plot in plots for panel in plot.panels[:1]]
    assert not [one for one in drawings if "nan" in one.lower()]


def test_two_cells_run_once_have_plots_that_make_no_estimate(tmp_path):
    pytest.importorskip("matplotlib")
    arms = factors(cache="none radix")
    made = study(arms, repeats=1, metrics=(Metric("mean_ttft_ms"), Metric("hit_rate", "higher")))
    cells = grid(arms)
    seen = observe(made, cells, lambda _: 0.0, aa=True)
    plots = plots_of(Results(made, tuple(cells), (), tuple(seen), analyse(made, cells, seen)))
    assert [plot.name for plot in plots] == ["pareto"]
    assert all(path.stat().st_size for path in write_plots(plots, tmp_path))
    with full_disk(), pytest.raises(RunFolderError, match=r"pareto\.png: .* File too large$"):
        write_plots(plots, tmp_path)


def test_lines_differ_by_colour_and_by_dashes():
    looks = [line_style(place) for place in range(12)]
    assert len({(one["color"], one["linestyle"]) for one in looks}) == 12
    assert len({one["color"] for one in looks[:6]}) == 6


def test_a_latency_curve_has_a_line_for_each_composition_over_its_throughput(small):
    study = replace(
        small.study, design="latency_curve", design_options={"over": "workload.rate", "values": [1]}
    )
    rates = ["1", "2", "4"]
    factors = (*study.factors, Factor("rate", tuple(map(Level, rates))))
    cells = tuple(
        replace(cell, levels={"cache": cell.levels["cache"], "rate": rate})
        for cell, rate in zip(small.cells, [*rates, *rates], strict=False)
    )
    plot = named(replace(small, study=replace(study, factors=factors), cells=cells))[
        "latency_curve"
    ]
    assert [name for name, _ in plot.legend] == ["cache=none", "cache=radix", "cache=block_hash"]
    assert [panel.title for panel in plot.panels] == ["mean TTFT over load", "mean TPOT over load"]


def test_the_front_of_each_workload_is_a_line_of_its_own(small):
    figure = pytest.importorskip("matplotlib.figure")
    others = {cell.cell for cell in small.findings.cells[::2]}
    apart = tuple(
        replace(one, workload_sha256="cd" * 32) if one.cell in others else one
        for one in small.observations
    )
    front = replace(
        small.findings, cells=tuple(replace(one, pareto=True) for one in small.findings.cells)
    )
    for observations, count in ((small.observations, 1), (apart, 2)):
        plot = named(replace(small, findings=front, observations=observations))["pareto"]
        assert ("the lines, one for each workload" in plot.about) == (count == 2)
        axis = figure.Figure().subplots()
        plot.panels[0].draw(axis)
        assert sum(line.get_linestyle() == "-" for line in axis.lines) == count


@pytest.mark.parametrize(
    ("value", "limit", "text"),
    [
        (-3.31, 14.0, "-3.3"),
        (0.0123, 0.026, "+0.012"),
        (0.5, 0.9, "+0.50"),
        (2e-9, 3e-9, "+2.0e-09"),
    ],
)
def test_interactions_are_written_with_the_digits_that_tell_them_apart(value, limit, text):
    assert _signed(value, limit) == text


def test_a_search_shows_the_best_trial_so_far(small):
    pytest.importorskip("matplotlib")
    found = named(replace(small, study=replace(small.study, design="search")))
    assert "the best is" in found["history"].panels[0].alt
    assert "trial" in svg_of(found["history"].panels[0], "x")


def test_without_matplotlib_the_error_names_the_extra(small, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(MissingExtraError, match=r"interlock\[plot\]"):
        svg_of(named(small)["effects"].panels[0], "x")


def test_run_folders_are_read_as_they_were_written(small, small_with_runs):
    results = small_with_runs
    eagle = "cache=none,spec=eagle"
    folders = results.folders(eagle)
    assert len(folders) == small.study.repeats
    assert {key: len(v) for key, v in latencies_ms(map(request_times, folders)).items()} == {
        "ttft": 24, "tpot": 24, "itl": 360, "e2el": 24,
    }  # fmt: skip
    seen = timeline(folders[0], request_times(folders[0]).first_token_s)
    assert seen.tokens["verify"].sum() > seen.tokens["decode"].sum() == 0
    assert seen.tokens["prefill"].sum() >= 8 * 48
    assert acceptance(folders) == pytest.approx([0.8, 0.6, 0.4])
    assert occupancy(folders[0])[1].max() == 0.59
    assert acceptance(results.folders("cache=none,spec=none")) == []


def test_a_run_folder_that_is_damaged_leaves_the_others(small, with_runs, tmp_path):
    results = with_runs(small, tmp_path)
    first, *rest = results.folders("cache=none,spec=none")
    for name in ("requests.jsonl", "steps.jsonl", "summary.json"):
        (first / name).write_text('{"half')
    assert timeline(first, request_times(first).first_token_s) is None
    assert occupancy(first) is None
    assert len(latencies_ms(map(request_times, [first, *rest]))["ttft"]) == 16


def test_binning_keeps_the_mean():
    rng = np.random.default_rng(0)
    end_s, values = np.sort(rng.uniform(0, 9, 5000)), rng.uniform(0, 5, 5000)
    at, means = binned(end_s, values)
    assert len(at) <= 160
    assert np.all(np.diff(at) > 0)
    assert means.mean() == pytest.approx(values.mean(), rel=0.02)
