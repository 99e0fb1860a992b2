"""Plots of what a study shows: effects with their intervals, and interactions."""

import math
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from interlock.study.findings import Contrast, Interaction
from interlock.study.report.results import Results, largest, of_metric
from interlock.study.report.style import COLOURS, GRID, INK, MUTED, Panel, Plot
from interlock.study.report.words import (
    change,
    counted,
    effect,
    is_defined,
    label_of,
    printable,
    shortened,
    titled,
    unit_of,
)
from interlock.study.spec import Metric

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MOST_METRICS, MOST_ROWS, MOST_LEVELS = 6, 16, 14
FARTHEST = {"ratio": 1e6, "difference": 1e30}
"""By scale, per cent and differences: what lies farther out is drawn here (no axis holds 1e300)."""
LOOKS: dict[str, dict[str, Any]] = {
    "better": {"color": COLOURS[0], "marker": "o"},
    "worse": {"color": COLOURS[1], "marker": "s"},
    "no difference shown": {"color": MUTED, "marker": "o", "markerfacecolor": "none"},
    "inert": {"color": COLOURS[3], "marker": "D", "markerfacecolor": "none"},
    "too few pairs": {"color": COLOURS[4], "marker": "x"},
}
"""Of verdicts; by colour and by marker."""


def look_of(verdict: str) -> dict[str, Any]:
    """How a verdict is drawn."""
    return LOOKS.get(verdict, {"color": MUTED, "marker": "v"})


def effects_plot(results: Results) -> Plot | None:
    """Effects of levels (of cells, where levels have none), a panel a metric."""
    found = results.findings
    levels = bool(found.effects)
    contrasts = found.effects if levels else found.contrasts
    metrics = [m for m in results.compared if of_metric(contrasts, m)]
    if not metrics:
        return None
    floors = {floor.metric: floor.value for floor in found.noise}
    panels, left_out, seen = [], 0, set[str]()
    for metric in metrics[:MOST_METRICS]:
        every = [c for c in of_metric(contrasts, metric) if is_defined(c.estimate.value)]
        kept = largest(every, MOST_ROWS)
        left_out = max(left_out, len(every) - len(kept))
        seen |= {contrast.verdict for contrast in kept}
        if kept:  # what has no estimate has no row: the table names it
            panels.append(_effects_panel(metric, kept, floors.get(metric.key)))
    what = "levels against the first of their factor" if levels else "cells against the baseline"
    about = f"Effects of {what}, with {found.confidence:.0%} intervals; grey band: the noise floor."
    if left_out:
        about += f" {counted(left_out, 'smaller effect')} a metric not drawn: see the table."
    if len(metrics) > MOST_METRICS:
        about += f" {counted(len(metrics) - MOST_METRICS, 'metric')} not drawn: see the table."
    legend = [(name, {"linestyle": "-", **look_of(name)}) for name in (*LOOKS,) if name in seen]
    return Plot("effects", "Effects", about, panels, legend) if panels else None


def _effects_panel(metric: Metric, kept: Sequence[Contrast], floor: float | None) -> Panel:
    said = "; ".join(f"{c.what} {effect(c.estimate, metric)} {c.verdict}" for c in kept[:8])
    return Panel(
        f"{label_of(metric.key)}: {metric.better} is better",
        partial(_draw_effects, metric=metric, kept=kept, floor=floor),
        printable(f"Effects on {titled(metric.key)}: {said}"),
        1.0 + 0.26 * len(kept),
    )


def _draw_effects(
    axis: "Axes", metric: Metric, kept: Sequence[Contrast], floor: float | None
) -> None:
    scale = 100.0 if metric.scale == "ratio" else 1.0
    farthest = FARTHEST["ratio" if scale == 100 else "difference"]

    def at(value: float) -> float:
        return max(-farthest, min(farthest, scale * value))

    if floor is not None and math.isfinite(floor):
        axis.axvspan(at(-floor), at(floor), color=GRID, alpha=0.6, linewidth=0)
    axis.axvline(0, color=INK, linewidth=0.9)
    ends: list[float] = []
    for row, contrast in enumerate(kept):
        estimate = contrast.estimate
        line = [at(end) for end in (estimate.low, estimate.high) if not math.isnan(end)]
        look = look_of(contrast.verdict)
        axis.plot(line, [row] * len(line), color=look["color"], linewidth=1.8)
        if not math.isnan(estimate.value):
            axis.plot([at(estimate.value)], [row], linestyle="", markersize=5, **look)
            ends.append(abs(at(estimate.value)))
    if ends and max(ends) > 500 and scale == 100:
        axis.set_xscale("symlog", linthresh=10)
    axis.set_yticks(range(len(kept)), [shortened(printable(c.what), 26) for c in kept])
    axis.set_ylim(len(kept) - 0.4, -0.6)
    axis.grid(False, axis="y")
    unit = "%" if scale == 100 else unit_of(metric.key)
    axis.set_xlabel(f"change ({unit})" if unit else "change")


def interactions_plot(results: Results) -> Plot | None:
    """A heat map a metric: how much one level's effect depends on another's."""
    found = results.findings.interactions
    by_metric = {m: [i for i in found if i.metric == m.key] for m in results.compared}
    panels = [_heat_panel(m, some, results) for m, some in by_metric.items() if some]
    if not panels:
        return None
    about = (
        "How much the effect of a row's level changes beside a column's. A star: significant after "
        "the correction."
    )
    most = max(
        len({i.first for i in some} | {i.second for i in some}) for some in by_metric.values()
    )
    if most > 2 * MOST_LEVELS:
        about += " Only the levels with the largest interactions are drawn: see the table."
    if len(panels) > 4:
        about += f" {counted(len(panels) - 4, 'metric')} not drawn: see the table."
    return Plot("interactions", "Interactions", about, panels[:4])


def _heat_panel(metric: Metric, found: Sequence[Interaction], results: Results) -> Panel:
    rows, columns = _strongest(found, "first"), _strongest(found, "second")
    top = max(found, key=lambda i: abs(i.estimate.value) if is_defined(i.estimate.value) else 0.0)
    alt = f"Interactions in {titled(metric.key)}; the largest: {top.first} with {top.second}, "
    alpha = 1 - results.findings.confidence
    return Panel(
        label_of(metric.key),
        partial(_draw_heat, metric=metric, found=found, rows=rows, columns=columns, alpha=alpha),
        printable(alt + change(top.estimate.value, metric)),
        1.9 + 0.3 * len(rows),
    )


def _signed(value: float, limit: float) -> str:
    """With as many digits as tell values up to `limit` apart."""
    decimals = 1 if limit >= 1 else 1 - math.floor(math.log10(limit))
    return f"{value:+.{decimals}f}" if decimals <= 6 else f"{value:+.1e}"


def _strongest(found: Sequence[Interaction], side: str) -> list[str]:
    """Levels on that side, in their order; those with the largest interactions if many."""
    sizes: dict[str, float] = {}
    for one in found:
        name, value = getattr(one, side), one.estimate.value
        sizes[name] = max(sizes.get(name, 0.0), abs(value) if is_defined(value) else 0.0)
    kept = set(sorted(sizes, key=lambda name: -sizes[name])[:MOST_LEVELS])
    return [name for name in sizes if name in kept]


def _draw_heat(
    axis: "Axes",
    metric: Metric,
    found: Sequence[Interaction],
    rows: Sequence[str],
    columns: Sequence[str],
    alpha: float,
) -> None:
    import matplotlib as mpl
    import numpy as np

    scale = 100.0 if metric.scale == "ratio" else 1.0
    grid = np.full((len(rows), len(columns)), np.nan)
    sure: set[tuple[int, int]] = set()
    for one in found:
        if one.first in rows and one.second in columns and math.isfinite(one.estimate.value):
            place = rows.index(one.first), columns.index(one.second)
            farthest = FARTHEST["ratio" if scale == 100 else "difference"]
            grid[place] = max(-farthest, min(farthest, scale * one.estimate.value))
            if one.estimate.p_adjusted < alpha:
                sure.add(place)
    limit = float(np.nanmax(np.abs(grid))) if np.isfinite(grid).any() else 1.0
    limit = limit or 1.0
    mesh = axis.pcolormesh(
        np.ma.masked_invalid(grid),
        cmap=mpl.colormaps["RdBu_r"].resampled(21),
        vmin=-limit,
        vmax=limit,
        edgecolors=GRID,
        linewidth=0.5,
    )
    for (row, column), value in np.ndenumerate(grid):
        star = "*" if (row, column) in sure else ""
        if math.isfinite(value) and (star or len(columns) <= 6):
            text = f"{_signed(value, limit)}{star}" if len(columns) <= 6 else star
            colour = "#ffffff" if abs(value) > 0.6 * limit else "#000000"
            axis.text(
                column + 0.5, row + 0.5, text, ha="center", va="center", color=colour, fontsize=8
            )
    short = [shortened(printable(name), 20) for name in columns]
    axis.set_xticks([c + 0.5 for c in range(len(columns))], short, rotation=35, ha="right")
    axis.set_yticks(
        [r + 0.5 for r in range(len(rows))], [shortened(printable(r), 20) for r in rows]
    )
    axis.invert_yaxis()
    axis.grid(False)
    bar = axis.figure.colorbar(mesh, ax=axis, fraction=0.06, pad=0.02)
    if bar.solids is not None:
        bar.solids.set_rasterized(False)  # a page shows no picture inside a drawing
    bar.set_label("%" if scale == 100 else unit_of(metric.key) or "difference")
