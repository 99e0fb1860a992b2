"""The tables of a study's page."""

import math
from collections.abc import Sequence

from interlock.study.findings import CellSummary, Contrast, Estimate
from interlock.study.report.markup import (
    Content,
    Field,
    Html,
    breakable,
    joined,
    section,
    table,
    tag,
)
from interlock.study.report.results import Results, idle_everywhere, ranked
from interlock.study.report.words import (
    chance,
    change,
    corrected,
    counted,
    effect,
    figure,
    interval,
    label_of,
    titled,
)
from interlock.study.spec import Metric
from interlock.study.verdicts import TOO_FEW

LOOKS = {"better": "better", "worse": "worse", "inert": "odd", "too few pairs": "odd"}


def cells_section(results: Results) -> Html:
    """Every cell that ran, with medians, ranges and what else there is to say of it."""
    metrics, findings = results.compared, results.findings
    order = ranked(findings.cells, metrics[0], findings.baseline) if metrics else findings.cells
    common = idle_everywhere(findings.cells)
    rows = [
        ([Field(_named(cell, findings.baseline, common)), *(_median(cell, m) for m in metrics)], "")
        for cell in order
    ]
    if not rows:
        return section("cells", "Cells", tag("p", "No cell ran."))
    caption = "Medians of each cell's runs, and in brackets the least and the most of them"
    heads = ["cell", *(f"{titled(m.key)}, {m.better} is better" for m in metrics)]
    lines = tag("div", table(caption, heads, rows), class_="figures")
    return section("cells", "Cells", lines)


def _named(cell: CellSummary, baseline: str, common: frozenset[str]) -> Html:
    marks: list[Content] = [breakable(cell.cell)]
    if cell.cell == baseline:
        marks.append(tag("span", "baseline", class_="mark"))
    if cell.pareto:
        marks.append(tag("span", "Pareto", class_="mark good"))
    idle = [seam for seam in cell.inert if seam not in common]
    marks += [tag("span", f"inert: {seam}", class_="mark odd") for seam in idle]
    if cell.num_failed:
        text = f"{cell.num_failed} of {cell.num_runs + cell.num_failed} failed"
        marks.append(tag("span", text, class_="mark bad"))
    if cell.shows_equal_tokens and cell.equal_tokens is not None:
        marks.append(tag("span", f"{cell.equal_tokens:.1%} of tokens equal", class_="mark odd"))
    marks += [
        tag("span", f"{what} {figure(value)}", class_="mark")
        for what, value in cell.quality.items()
    ]
    return joined(marks)


def _median(cell: CellSummary, metric: Metric) -> Field:
    value = cell.medians.get(metric.key)
    ends = interval(cell.lows.get(metric.key), cell.highs.get(metric.key))
    return Field(joined((figure(value), " ", tag("small", ends) if ends else None)), value)


def contrasts_section(
    name: str, title: str, what: str, results: Results, contrasts: Sequence[Contrast]
) -> Html | None:
    """Contrasts with whiskers, verdicts and reasons; one metric at a time, or all."""
    if not contrasts:
        return None
    metrics = {metric.key: metric for metric in results.compared}
    for contrast in contrasts:
        metrics.setdefault(contrast.metric, Metric(contrast.metric))
    floors = {floor.metric: floor.value for floor in results.findings.noise}
    reach = {key: reach_of([c.estimate for c in contrasts if c.metric == key]) for key in metrics}
    rows = [
        (_contrast(c, metrics[c.metric], floors.get(c.metric), reach[c.metric]), c.metric)
        for c in contrasts
    ]
    caption = f"{title}, with {results.findings.confidence:.0%} intervals"
    heads = [what, "effect", "verdict", "p, corrected", "pairs", "metric", "against"]
    shown = [key for key in metrics if any(c.metric == key for c in contrasts)]
    choices = [(key, f"{titled(key)}, {metrics[key].better} is better") for key in shown]
    return section(name, title, table(caption, heads, rows, choices))


def _contrast(
    contrast: Contrast, metric: Metric, floor: float | None, reach: float
) -> list[Field | str]:
    estimate, look = contrast.estimate, LOOKS.get(contrast.verdict, "")
    verdict = tag("span", contrast.verdict, class_=f"verdict {look}".strip())
    drawn = whisker(estimate, floor, reach, look)
    return [
        contrast.what,
        Field(joined((effect(estimate, metric), drawn)), estimate.value),
        Field(joined((verdict, " ", tag("small", contrast.reason) if contrast.reason else None))),
        Field(corrected(estimate), estimate.p_adjusted),
        Field(str(estimate.num_pairs), estimate.num_pairs),
        Field(label_of(contrast.metric)),
        contrast.against,
    ]


def reach_of(estimates: Sequence[Estimate]) -> float:
    """What a whisker's half width stands for: the largest end, of outliers only a part."""
    ends = sorted(
        abs(end) for e in estimates for end in (e.value, e.low, e.high) if math.isfinite(end)
    )
    return max(ends[int(0.95 * (len(ends) - 1))] * 1.15, 1e-12) if ends else 1.0


def whisker(estimate: Estimate, floor: float | None, reach: float, look: str) -> Html:
    """A small drawing of an effect: grey for the noise floor, a line for the interval."""

    def at(value: float) -> float:
        return 75 + 70 * max(-1.0, min(1.0, value / reach))

    parts = []
    if floor is not None and math.isfinite(floor):
        left, right = at(-floor), at(floor)
        parts.append(
            f'<rect class="band" x="{left:.1f}" y="0" width="{right - left:.1f}" height="14"/>'
        )
    parts.append('<path class="zero" d="M75 0V14"/>')
    if math.isfinite(estimate.low) and math.isfinite(estimate.high):
        parts.append(f'<path class="line" d="M{at(estimate.low):.1f} 7H{at(estimate.high):.1f}"/>')
    if math.isfinite(estimate.value):
        parts.append(f'<circle class="dot" cx="{at(estimate.value):.1f}" cy="7" r="3.5"/>')
    inside = "".join(parts)
    kind = f"whisker {look}".strip()
    return Html(f'<svg class="{kind}" viewBox="0 0 150 14" aria-hidden="true">{inside}</svg>')


def interactions_section(results: Results) -> Html | None:
    """Interactions of two levels."""
    found = results.findings.interactions
    if not found:
        return None
    metrics = {metric.key: metric for metric in results.compared}
    rows = []
    for one in found:
        metric, estimate = metrics.get(one.metric, Metric(one.metric)), one.estimate
        fields: list[Field | str] = [
            one.first,
            one.second,
            Field(effect(estimate, metric), estimate.value),
            Field(corrected(estimate), estimate.p_adjusted),
            label_of(one.metric),
        ]
        rows.append((fields, one.metric))
    choices = [(key, titled(key)) for key in dict.fromkeys(one.metric for one in found)]
    caption = "How much the effect of a level changes beside another"
    heads = ["level", "beside", "interaction", "p, corrected", "metric"]
    return section("interactions", "Interactions", table(caption, heads, rows, choices))


def validity_section(results: Results) -> Html | None:
    """The noise floor and the drift of the machine."""
    findings = results.findings
    metrics = {metric.key: metric for metric in results.compared}
    drift = {one.metric: one for one in findings.drift}
    noise = {one.metric: one for one in findings.noise}
    rows = []
    for key in dict.fromkeys((*noise, *drift)):
        metric, floor, slope = metrics.get(key, Metric(key)), noise.get(key), drift.get(key)
        size = change(floor.value, metric).lstrip("+") if floor and floor.is_known else TOO_FEW
        moved = f"{100 * slope.per_run:+.3f} %" if slope else ""
        fields: list[Field | str] = [
            titled(key),
            Field(size if floor else "", floor.value if floor else None),
            Field(str(floor.num_pairs) if floor else "", floor.num_pairs if floor else None),
            floor.source if floor else "",
            Field(moved, slope.per_run if slope else None),
            Field(chance(slope.p) if slope else "", slope.p if slope else None),
        ]
        rows.append((fields, ""))
    if not rows:
        return None
    caption = "What two runs of one composition differ by, and whether the machine changed"
    heads = ["metric", "noise floor", "pairs", "source", "drift per run", "p of the drift"]
    return section("noise", "Noise floor and drift", table(caption, heads, rows, tools=False))


def refusals_section(results: Results) -> Html | None:
    """Cells that could not run and runs that failed, with their reasons."""
    parts: list[Content] = []
    if results.refusals:
        rows: list[tuple[list[Field | str], str]] = [
            ([one.cell.id, Field(joined(tag("div", problem) for problem in one.problems))], "")
            for one in results.refusals
        ]
        many = counted(len(results.refusals), "cell")
        parts.append(table(f"{many} refused: they cannot be composed", ["cell", "why"], rows))
    if results.failed:
        rows = [
            ([one.cell, Field(str(one.repeat), one.repeat), one.failure], "")
            for one in results.failed
        ]
        many = counted(len(results.failed), "run")
        parts.append(table(f"{many} failed", ["cell", "repeat", "why"], rows))
    return section("refused", "Refused and failed", *parts) if parts else None
