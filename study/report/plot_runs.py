"""Plots of runs: latencies of their requests, what steps did over time, accepted candidates."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from interlock.driver.latency import Floats
from interlock.study.report.results import Results, best_and_worst, ranked
from interlock.study.report.runs import (
    KINDS,
    MOST_POINTS,
    RequestTimes,
    Timeline,
    acceptance,
    binned,
    latencies_ms,
    occupancy,
    request_times,
    timeline,
)
from interlock.study.report.style import (
    COLOURS,
    Panel,
    Plot,
    Style,
    line_style,
    log_where_wide,
)
from interlock.study.report.words import counted, figure, printable

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Times = Mapping[str, Sequence[RequestTimes]]
MOST_LINES, MOST_TIMELINES = 7, 6
NAMES = {
    "ttft": "time to first token (TTFT)",
    "tpot": "time per output token (TPOT)",
    "itl": "inter-token latency (ITL)",
    "e2el": "end-to-end latency",
}


def shown_cells(results: Results, most: int, with_runs: bool = True) -> list[str]:
    """The baseline, the best and the worst by the first metric: those whose runs are drawn."""
    cells = list(results.findings.cells)
    if results.compared:
        cells = ranked(cells, results.compared[0], results.findings.baseline)
    kept = [cell for cell in cells if not with_runs or results.folders(cell.cell)]
    return [cell.cell for cell in best_and_worst(kept, most)]


def run_plots(results: Results) -> list[Plot]:
    """All plots for which the folders of runs have something."""
    cells = shown_cells(results, MOST_LINES)
    if not cells:
        return []
    left = sum(bool(results.folders(c.cell)) for c in results.findings.cells) - len(cells)
    metric = results.compared[0].key if results.compared else "order"
    omitted = (
        f" {counted(left, 'cell')} not drawn: the baseline, the best and the worst by {metric} are."
        if left
        else ""
    )
    times = {cell: [request_times(folder) for folder in results.folders(cell)] for cell in cells}
    found = [
        _cdfs(results, times, cells, omitted),
        _steps(results, times, cells[:MOST_TIMELINES]),
        _occupancy(results, cells, omitted),
        _acceptance(results),
    ]
    return [plot for plot in found if plot is not None]


def _styles(cells: Sequence[str], baseline: str) -> dict[str, Style]:
    others = [cell for cell in cells if cell != baseline]
    return {
        cell: line_style(others.index(cell) if cell in others else 0, cell == baseline)
        for cell in cells
    }


def _legend(styles: Mapping[str, Style], baseline: str) -> list[tuple[str, Style]]:
    return [
        (printable(cell) + (" (baseline)" if cell == baseline else ""), style)
        for cell, style in styles.items()
    ]


def _cdfs(results: Results, times: Times, cells: Sequence[str], omitted: str) -> Plot | None:
    found = {cell: latencies_ms(times[cell]) for cell in cells}
    styles = _styles(cells, results.findings.baseline)
    panels = []
    for key, name in NAMES.items():
        lines = {cell: seen[key] for cell, seen in found.items() if len(seen[key])}
        if lines:
            medians = (f"{c} {figure(float(np.median(v)))} ms" for c, v in lines.items())
            panels.append(
                Panel(
                    name,
                    partial(_draw_cdf, lines=lines, styles=styles, name=name),
                    printable(f"Distribution of {name}; medians: {'; '.join(medians)}"),
                    2.7,
                )
            )
    if not panels:
        return None
    about = (
        f"Share of completed requests (of tokens for ITL) of all repeats below each time.{omitted}"
    )
    return Plot(
        "latency_cdfs", "Distributions of latencies", about, panels,
        _legend(styles, results.findings.baseline),
    )  # fmt: skip


def _draw_cdf(
    axis: "Axes", lines: Mapping[str, Floats], styles: Mapping[str, Style], name: str
) -> None:
    spread: list[float] = []
    for cell, values in lines.items():
        shares = np.linspace(0, 1, min(len(values), MOST_POINTS) + 1)[1:]
        at = np.quantile(values, shares, method="inverted_cdf")
        axis.step(at, shares, where="post", **dict(styles[cell]))
        spread += [float(np.quantile(values, 0.02)), float(values[-1])]
    axis.set_ylim(0, 1.02)
    axis.set_xlabel(f"{name.split(' (')[0]} (ms)")
    axis.set_ylabel("share below")
    log_where_wide(axis, spread, "x", 20)
    if axis.get_xscale() == "log":
        axis.set_xlim(left=0.8 * min(spread))


def _steps(results: Results, times: Times, cells: Sequence[str]) -> Plot | None:
    found = {
        cell: timeline(results.folders(cell)[0], times[cell][0].first_token_s) for cell in cells
    }
    known = [seen for seen in found.values() if seen is not None]
    top = max((seen.tokens[kind].max() for seen in known for kind in KINDS), default=1.0)
    panels = [
        Panel(
            printable(cell) + (" (baseline)" if cell == results.findings.baseline else ""),
            partial(_draw_steps, seen=seen, top=float(top)),
            printable(f"Tokens a step of {cell}: {_totals(seen)}"),
            2.2,
        )
        for cell, seen in found.items()
        if seen is not None
    ]
    if not panels:
        return None
    legend: list[tuple[str, Style]] = [
        (kind, {"color": COLOURS[place], "linewidth": 6}) for place, kind in enumerate(KINDS)
    ]
    about = (
        "What each step computed, in the first repeat of a cell; means over short spans of time."
    )
    have = sum(bool(results.folders(c.cell)) for c in results.findings.cells)
    if have > len(panels):
        about += f" {counted(have - len(panels), 'cell')} not drawn."
    return Plot("steps", "Tokens of each step", about, panels, legend)


def _totals(seen: Timeline) -> str:
    parts = (f"{seen.tokens[kind].sum():,.0f} tokens of {kind}" for kind in KINDS)
    return f"{', '.join(parts)} in {counted(len(seen.end_s), 'step')}"


def _draw_steps(axis: "Axes", seen: Timeline, top: float) -> None:
    start_s = seen.start_s
    for place, kind in enumerate(KINDS):
        at, values = binned(seen.end_s - start_s, seen.tokens[kind])
        if not values.any():
            continue
        at, values = np.r_[0.0, at], np.r_[values[:1], values]  # a step lasts up to its end
        axis.fill_between(at, values, step="pre", color=COLOURS[place], alpha=0.3, linewidth=0)
        axis.step(at, values, where="pre", color=COLOURS[place], linewidth=1.3)
    axis.set_xlabel("time since the first step (s)")
    axis.set_ylabel("tokens a step")
    if top > 100:  # a prompt has many times the tokens of a step of decoding
        axis.set_yscale("symlog", linthresh=10)
        axis.yaxis.set_major_formatter(lambda value, _place: f"{value:g}")
    axis.set_ylim(0, 1.3 * top or 1.0)  # the same for all cells
    axis.margins(x=0)


def _occupancy(results: Results, cells: Sequence[str], omitted: str) -> Plot | None:
    found = {cell: occupancy(results.folders(cell)[0]) for cell in cells}
    lines = {cell: seen for cell, seen in found.items() if seen is not None}
    if not lines:
        return None
    styles = _styles(list(lines), results.findings.baseline)
    peaks = (f"{cell} {values.max():.0%}" for cell, (_, values) in lines.items())
    panel = Panel(
        "pages that requests hold",
        partial(_draw_occupancy, lines=lines, styles=styles),
        printable(f"KV occupancy over time; peaks: {', '.join(peaks)}"),
        2.6,
    )
    about = (
        f"The share of the cache's pages that running requests hold, in the first repeat.{omitted}"
    )
    legend = _legend(styles, results.findings.baseline)
    return Plot("kv_occupancy", "KV occupancy", about, [panel], legend)


def _draw_occupancy(
    axis: "Axes", lines: Mapping[str, tuple[Floats, Floats]], styles: Mapping[str, Style]
) -> None:
    for cell, (end_s, held) in lines.items():
        at, values = binned(end_s - float(end_s[0]), held)
        axis.plot(at, 100 * values, **dict(styles[cell]))
    axis.set_ylim(bottom=0)
    axis.set_xlabel("time since the first step (s)")
    axis.set_ylabel("pages held (%)")


def _acceptance(results: Results) -> Plot | None:
    rates = {c.cell: acceptance(results.folders(c.cell)) for c in results.findings.cells}
    drafting = {cell: shares for cell, shares in rates.items() if shares}
    if not drafting:
        return None
    order = sorted(drafting, key=lambda cell: -sum(drafting[cell]))
    shown = order[:5] + order[5:][-2:]
    styles = _styles(shown, "")
    panel = Panel(
        "accepted by position in a draft",
        partial(_draw_acceptance, lines={cell: drafting[cell] for cell in shown}, styles=styles),
        printable(
            "Acceptance by position: "
            + "; ".join(f"{c} {' '.join(f'{r:.0%}' for r in drafting[c])}" for c in shown)
        ),
        2.6,
    )
    about = "The share of drafts whose candidate at that position was accepted; means over repeats."
    if len(order) > len(shown):
        about += (
            f" {counted(len(order) - len(shown), 'cell')} between the best and the worst not drawn."
        )
    legend = [(printable(cell), {**styles[cell], "marker": "o"}) for cell in shown]
    return Plot("acceptance", "Acceptance by position", about, [panel], legend)


def _draw_acceptance(
    axis: "Axes", lines: Mapping[str, Sequence[float]], styles: Mapping[str, Style]
) -> None:
    for cell, shares in lines.items():
        places = range(1, len(shares) + 1)
        axis.plot(places, [100 * share for share in shares], marker="o", ms=4, **dict(styles[cell]))
    axis.set_xticks(range(1, max(map(len, lines.values())) + 1))
    axis.set_ylim(0, 102)
    axis.set_xlabel("position in the draft")
    axis.set_ylabel("accepted (%)")
