"""Plots of cells: the Pareto front, curves of latency over load, and the trials of a search."""

import itertools
import math
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from interlock.study.findings import CellSummary
from interlock.study.report.results import Results, ranked
from interlock.study.report.style import (
    COLOURS,
    INK,
    MUTED,
    Panel,
    Plot,
    Style,
    line_style,
    log_where_wide,
)
from interlock.study.report.words import counted, figure, label_of, printable, titled
from interlock.study.spec import Metric
from interlock.study.summaries import rivals

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MOST_LABELS, MOST_LINES, MOST_CURVES = 12, 8, 4
FARTHEST = 1e100
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


def pareto_plot(results: Results) -> Plot | None:
    """Every cell in the plane of the first two metrics; those that no other beats have letters."""
    if len(results.compared) < 2:
        return None
    across, up = results.compared[:2]
    cells = [c for c in results.findings.cells if _at(c, across) and _at(c, up)]
    if len(cells) < 2:
        return None
    front = sorted((c for c in cells if c.pareto), key=lambda c: c.medians[across.key] or 0.0)
    named = front[:MOST_LABELS]
    legend: list[tuple[str, Style]] = []
    for letter, cell in zip(LETTERS, named, strict=False):
        style = {"color": COLOURS[0], "marker": "o", "linestyle": ""}
        legend.append((f"{letter}: {printable(cell.cell)}", style))
    star: Style = {"color": INK, "marker": "*", "markersize": 11, "linestyle": ""}
    legend.append((f"baseline: {printable(results.findings.baseline)}", star))
    lines = _by_workload(results, front)
    line = "the lines, one for each workload" if len(lines) > 1 else "the line"
    among = " of their workload" if len(lines) > 1 else ""
    about = (
        f"Medians of {counted(len(cells), 'cell')} with the ranges of their runs; on {line}, cells "
        f"that no other{among} beats in both. {label_of(across.key)}: {across.better} is better; "
        f"{label_of(up.key)}: {up.better} is better."
    )
    if len(front) > len(named):
        about += f" {len(front) - len(named)} more cells on the line have no letter: see the table."
    drawn = partial(
        _draw_pareto, metrics=(across, up), cells=cells, lines=lines, named=named,
        base=results.findings.baseline,
    )  # fmt: skip
    figures = (
        f"{c.cell} {figure(c.medians[across.key])}, {figure(c.medians[up.key])}" for c in named
    )
    alt = f"{titled(up.key)} over {titled(across.key)}. Cells that none beats: {'; '.join(figures)}"
    panel = Panel(f"{label_of(up.key)} over {label_of(across.key)}", drawn, printable(alt), 3.6)
    return Plot("pareto", "Trade-off between the first two metrics", about, [panel], legend)


def _by_workload(results: Results, front: Sequence[CellSummary]) -> list[list[CellSummary]]:
    """The cells of a front in their order, those of one workload together."""
    served = rivals(results.observations)
    found: dict[object, list[CellSummary]] = {}
    for cell in front:
        found.setdefault(served.get(cell.cell), []).append(cell)
    return list(found.values())


def _is_drawable(*values: float | None) -> bool:
    """Whether an axis holds them: neither undefined nor so large that its scale overflows."""
    return all(one is not None and math.isfinite(one) and abs(one) < FARTHEST for one in values)


def _at(cell: CellSummary, metric: Metric) -> bool:
    value = cell.medians.get(metric.key)
    return _is_drawable(value)


def _draw_pareto(
    axis: "Axes",
    metrics: tuple[Metric, Metric],
    cells: Sequence[CellSummary],
    lines: Sequence[Sequence[CellSummary]],
    named: Sequence[CellSummary],
    base: str,
) -> None:
    x, y = (metric.key for metric in metrics)

    def point(cell: CellSummary) -> tuple[float, float]:
        return cell.medians[x] or 0.0, cell.medians[y] or 0.0

    others = [point(cell) for cell in cells if not cell.pareto]
    axis.plot([p[0] for p in others], [p[1] for p in others], "o", color=MUTED, ms=4, alpha=0.6)
    for line in lines:
        at = [point(cell) for cell in line]
        axis.plot([p[0] for p in at], [p[1] for p in at], "o-", color=COLOURS[0], ms=5, lw=1.2)
    for letter, cell in zip(LETTERS, named, strict=False):
        left, top = point(cell)
        for key, place, draw in ((x, top, axis.hlines), (y, left, axis.vlines)):
            low, high = cell.lows.get(key), cell.highs.get(key)
            if low is not None and high is not None and _is_drawable(low, high):
                draw(place, low, high, color=COLOURS[0], linewidth=0.9, alpha=0.7)
        axis.annotate(letter, (left, top), (4, 4), textcoords="offset points", fontweight="bold")
    for cell in cells:
        if cell.cell == base:
            left, top = point(cell)
            axis.plot([left], [top], "*", color=INK, ms=12)
    axis.set_xlabel(titled(x))
    axis.set_ylabel(titled(y))
    log_where_wide(axis, [point(c)[0] for c in cells], "x")
    log_where_wide(axis, [point(c)[1] for c in cells], "y")
    axis.margins(0.08)


def curves_plot(results: Results) -> Plot | None:
    """Of a latency_curve: each latency over the throughput reached, a line a composition."""
    study = results.study
    load = str(study.design_options.get("over", "")).rsplit(".", 1)[-1]
    if study.design != "latency_curve" or not load:
        return None
    lines: dict[str, list[CellSummary]] = {}
    found = {summary.cell: summary for summary in results.findings.cells}
    loads = {cell.id: cell.levels.get(load, "") for cell in results.cells}
    for cell in results.cells:
        rest = ", ".join(f"{k}={v}" for k, v in cell.levels.items() if k != load)
        if cell.id in found:
            lines.setdefault(rest or "all", []).append(found[cell.id])
    reached = [m for m in results.compared if "throughput" in m.key]
    times = [m for m in results.compared if m.key.endswith("_ms")][:MOST_CURVES]
    if not lines or not times:
        return None
    shown = dict(itertools.islice(lines.items(), MOST_LINES))
    legend = [(printable(name), {**line_style(i), "marker": "o"}) for i, name in enumerate(shown)]
    across = titled(reached[0].key) if reached else load
    about = f"Each point is a value of {load}; to the right and low is good."
    if len(lines) > len(shown):
        about += f" {counted(len(lines) - len(shown), 'composition')} not drawn: see the table."
    panels = [
        Panel(
            f"{label_of(metric.key)} over load",
            partial(
                _draw_curve, metric=metric, lines=list(shown.values()), loads=loads,
                reached=reached[0] if reached else None, across=across,
            ),
            f"{titled(metric.key)} over {across} for {counted(len(shown), 'composition')}",
        )
        for metric in times
    ]  # fmt: skip
    return Plot("latency_curve", "Latency over throughput", about, panels, legend)


def _draw_curve(
    axis: "Axes",
    metric: Metric,
    lines: Sequence[Sequence[CellSummary]],
    loads: dict[str, str],
    reached: Metric | None,
    across: str,
) -> None:
    seen: list[float] = []
    for place, cells in enumerate(lines):
        points = []
        for cell in cells:
            x = cell.medians.get(reached.key) if reached else _number(loads[cell.cell])
            y = cell.medians.get(metric.key)
            if x is not None and y is not None and _is_drawable(x, y):
                points.append((_number(loads[cell.cell]) or 0.0, x, y))
        points.sort()
        axis.plot(
            [p[1] for p in points], [p[2] for p in points], marker="o", ms=4, **line_style(place)
        )
        seen += [p[2] for p in points]
    axis.set_xlabel(across)
    axis.set_ylabel(titled(metric.key))
    log_where_wide(axis, seen, "y", 10)


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def history_plot(results: Results) -> Plot | None:
    """Of a search: what each trial reached, and the best so far."""
    if results.study.design != "search":
        return None
    panels = []
    for metric in results.compared[:2]:
        values: dict[str, float] = {}
        for cell in (c.id for c in results.cells):
            summary = next((c for c in results.findings.cells if c.cell == cell), None)
            if summary and _at(summary, metric):
                values[cell] = summary.medians[metric.key] or 0.0
        if values:
            best = ranked(results.findings.cells, metric)[0].cell
            panels.append(
                Panel(
                    label_of(metric.key),
                    partial(_draw_history, metric=metric, values=list(values.values())),
                    printable(f"{titled(metric.key)} by trial; the best is {best}"),
                )
            )
    about = "Points: trials in their order, the baseline first; line: the best so far."
    return Plot("history", "Trials", about, panels) if panels else None


def _draw_history(axis: "Axes", metric: Metric, values: Sequence[float]) -> None:
    best = list(itertools.accumulate(values, min if metric.better == "lower" else max))
    places = range(len(values))
    axis.plot(places, values, "o", color=MUTED, ms=4)
    axis.step(places, best, where="post", color=COLOURS[0], linewidth=1.8)
    axis.axhline(values[0], color=INK, linewidth=0.9, linestyle="--")
    axis.set_xlabel("trial")
    axis.set_ylabel(titled(metric.key))
    log_where_wide(axis, values, "y")
