"""What a study found, on a terminal of any width."""

from collections import Counter
from collections.abc import Sequence

from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from interlock.study.findings import CellSummary, Contrast, Findings
from interlock.study.report.results import (
    Results,
    best_and_worst,
    idle_everywhere,
    largest,
    metrics_of,
    of_metric,
    ranked,
)
from interlock.study.report.words import (
    corrected,
    counted,
    effect,
    figure,
    interval,
    listed,
    printable,
    titled,
)
from interlock.study.spec import Metric, Observation, Refusal, Study
from interlock.study.verdicts import TOO_FEW

STYLES = {"better": "bold green", "worse": "bold red", "inert": "yellow"}
WIDE = 110
"""Columns from which on a cell's range stands beside its median, and reasons in a column."""
METRIC_COLUMN = {True: 30, False: 20}
"""What a metric takes on a wide and on a narrow terminal."""


def print_results(console: Console, results: Results, most: int = 30) -> None:
    """Print all that `results` holds; `most` cells and contrasts of a metric at most."""
    print_findings(console, results.study, results.findings, results.refusals, results.failed, most)


def print_findings(
    console: Console,
    study: Study,
    findings: Findings,
    refusals: Sequence[Refusal] = (),
    failed: Sequence[Observation] = (),
    most: int = 30,
) -> None:
    """Print notes, cells, effects, refusals and the noise floor, in this order."""
    parts: list[RenderableType] = [Text(printable(study.title or study.name), "bold")]
    if findings.notes:
        parts.append(lines_of("What you must know", findings.notes, "yellow"))
    metrics = metrics_of(study, findings)
    if metrics:
        parts += _cells(findings, metrics, console.width, most)
    elif not findings.cells:
        parts.append(Text("\nNo cell ran."))
    else:
        parts.append(Text("\nNo cell has a figure: every run failed, or no request ended."))
    parts += _compared(findings, metrics, console.width, most)
    if findings.noise:
        parts.append(_noise(findings, metrics))
    if failed:
        parts.append(_failures(failed))
    if refusals:
        parts.append(_refusals(refusals))
    for part in parts:
        console.print(part)


def _compared(
    findings: Findings, metrics: Sequence[Metric], width: int, most: int
) -> list[RenderableType]:
    """Effects of levels, and of the cells what they do not say already."""
    base = printable(findings.baseline)
    if not findings.effects:
        return _contrasts(f"Cells against {base}", findings.contrasts, metrics, width, most)
    parts = _contrasts("Effects of levels", findings.effects, metrics, width, most)
    if _same(findings):
        return parts
    sure = [c for c in findings.contrasts if c.verdict in ("better", "worse")]
    parts += _contrasts(f"Cells against {base}, those shown to differ", sure, metrics, width, most)
    rest = Counter(c.verdict for c in findings.contrasts if c not in sure)
    counts = ", ".join(f"{number} {printable(verdict)}" for verdict, number in rest.items())
    if counts:
        parts.append(Text(f"\nOther cells, over all metrics: {counts}; see report.html", "dim"))
    return parts


def _same(findings: Findings) -> bool:
    """True where cells differ from the baseline in one level, so that effects say it all."""
    values = {(c.metric, c.estimate.value, c.estimate.low) for c in findings.effects}
    return all((c.metric, c.estimate.value, c.estimate.low) in values for c in findings.contrasts)


def table_of(title: str) -> Table:
    """An empty table without lines, its title above it."""
    return Table(
        title=Text(f"\n{title}", "bold"),
        title_justify="left",
        box=None,
        pad_edge=False,
        expand=False,
    )


def _cells(
    findings: Findings, metrics: Sequence[Metric], width: int, most: int
) -> list[RenderableType]:
    """As many tables as the width asks for, each with some of the metrics."""
    wide = width >= WIDE
    room = max(width - (40 if wide else max(14, width * 2 // 5)), 1)
    each = max(room // METRIC_COLUMN[wide], 1)
    order = ranked(findings.cells, metrics[0], findings.baseline)
    shown, common = best_and_worst(order, most), idle_everywhere(order)
    tables: list[RenderableType] = []
    for start in range(0, len(metrics), each):
        part = metrics[start : start + each]
        rest = f" (part {start // each + 1})" if len(metrics) > each else ""
        table = table_of(f"Cells: medians [least, most] of their runs{rest}")
        table.add_column("cell", overflow="fold")
        for metric in part:
            table.add_column(f"{titled(metric.key)}\n{metric.better} is better", justify="right")
        for cell in shown:
            table.add_row(_name(cell, findings, common), *(_figures(cell, m, wide) for m in part))
        tables.append(table)
    if len(shown) < len(order):
        tables.append(
            Text(
                f"{len(order) - len(shown)} cells between these are not shown: see cells.csv", "dim"
            )
        )
    return tables


def _name(cell: CellSummary, findings: Findings, common: frozenset[str]) -> Text:
    text = Text(printable(cell.cell))
    if cell.cell == findings.baseline:
        text.append(" baseline", "bold")
    if cell.pareto:
        text.append(" Pareto", "cyan")
    idle = [seam for seam in cell.inert if seam not in common]
    if idle:
        text.append(f" inert: {listed(idle, 4)}", "yellow")
    if cell.num_failed:
        text.append(f" {cell.num_failed} failed", "red")
    if cell.shows_equal_tokens and cell.equal_tokens is not None:
        text.append(f" {cell.equal_tokens:.1%} of tokens equal", "yellow")
    for what, value in cell.quality.items():
        text.append(f" {printable(what)} {figure(value)}", "dim")
    return text


def _figures(cell: CellSummary, metric: Metric, wide: bool) -> Text:
    text = Text(figure(cell.medians.get(metric.key)))
    ends = interval(cell.lows.get(metric.key), cell.highs.get(metric.key))
    if ends:
        text.append(f"{' ' if wide else chr(10)}{ends}", "dim")
    return text


def _contrasts(
    title: str,
    contrasts: Sequence[Contrast],
    metrics: Sequence[Metric],
    width: int,
    most: int,
) -> list[RenderableType]:
    parts: list[RenderableType] = []
    wide, first = width >= WIDE, "level" if title.startswith("Effects") else "cell"
    whole = all(len(printable(one.what)) <= width * 2 // 5 for one in contrasts)
    for metric in metrics:
        found = of_metric(contrasts, metric)
        if not found:
            continue
        table = table_of(f"{title}: {titled(metric.key)}, {metric.better} is better")
        table.add_column(first, overflow="fold", no_wrap=whole)  # names have no blanks
        table.add_column("effect", overflow="fold")
        if wide:
            table.add_column("p, corrected", justify="right")
        table.add_column("verdict", overflow="fold")
        for contrast in largest(found, most):
            table.add_row(*_contrast(contrast, metric, wide))
        parts.append(table)
        if len(found) > most:
            parts.append(Text(f"{len(found) - most} smaller ones are in findings.csv", "dim"))
    return parts


def _contrast(contrast: Contrast, metric: Metric, wide: bool) -> list[Text]:
    verdict = Text(printable(contrast.verdict), STYLES.get(contrast.verdict, ""))
    if contrast.reason:
        verdict.append(f": {printable(contrast.reason)}", "dim not bold")
    row = [Text(printable(contrast.what)), Text(effect(contrast.estimate, metric))]
    return [*row, *([Text(corrected(contrast.estimate))] if wide else []), verdict]


def _noise(findings: Findings, metrics: Sequence[Metric]) -> Table:
    scales = {metric.key: metric for metric in metrics}
    table = table_of("Noise floor: what two runs of one composition differ by")
    for name in ("metric", "floor", "pairs", "source"):
        table.add_column(name, overflow="fold")
    for floor in findings.noise:
        metric = scales.get(floor.metric, Metric(floor.metric))
        size = f"{100 * floor.value:.2f} %" if metric.scale == "ratio" else figure(floor.value)
        value = size if floor.is_known else TOO_FEW
        table.add_row(
            Text(titled(floor.metric)), value, str(floor.num_pairs), Text(printable(floor.source))
        )
    return table


def _failures(failed: Sequence[Observation], most: int = 10) -> Text:
    lines = [f"{one.cell}, repeat {one.repeat}: {one.failure}" for one in failed[:most]]
    if len(failed) > most:
        lines.append(f"and {len(failed) - most} more; see results.csv")
    return lines_of(f"{counted(len(failed), 'run')} failed", lines, "red")


def _refusals(refusals: Sequence[Refusal], most: int = 20) -> Text:
    lines = [f"{one.cell.id}: {' '.join(one.problems)}" for one in refusals[:most]]
    if len(refusals) > most:
        lines.append(f"and {len(refusals) - most} more; see cells.csv")
    return lines_of(f"{counted(len(refusals), 'cell')} refused", lines, "")


def lines_of(title: str, lines: Sequence[str], style: str) -> Text:
    """A title and one point for each line."""
    text = Text(f"\n{title}", "bold")
    for line in lines:
        text.append(f"\n- {printable(line)}", f"{style} not bold".strip())
    return text
