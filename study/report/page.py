"""The page of a study: one file that opens anywhere, and says first what a reader must know."""

import json
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from interlock.study.report.markup import Content, Html, document, joined, section, tag
from interlock.study.report.page_tables import (
    cells_section,
    contrasts_section,
    interactions_section,
    refusals_section,
    validity_section,
)
from interlock.study.report.results import Results, largest
from interlock.study.report.style import IN_PAGE, Plot, svg_of
from interlock.study.report.words import counted, effect, label_of, printable, titled
from interlock.study.spec import Metric

MARKERS = {"o": "●", "s": "■", "D": "◇", "x": "✕", "*": "★", "v": "▼"}
DASH = {"--": "6 3", "-.": "6 2 2 2", ":": "2 2"}


def page_of(results: Results, plots: Sequence[Plot], without_plots: str = "") -> str:
    """The whole page. `without_plots` says why there are no figures, where that is so."""
    title = results.study.title or results.study.name
    found = results.findings
    parts: list[tuple[str, str, Html | None]] = [
        ("short", "In short", _short(results)),
        ("figures", "Figures", _figures(plots, without_plots)),
        (
            "effects",
            "Effects of levels",
            contrasts_section("effects", "Effects of levels", "level", results, found.effects),
        ),
        ("cells", "Cells", cells_section(results)),
        (
            "contrasts",
            "Cells against the baseline",
            contrasts_section(
                "contrasts", "Cells against the baseline", "cell", results, found.contrasts
            ),
        ),
        ("interactions", "Interactions", interactions_section(results)),
        ("noise", "Noise and drift", validity_section(results)),
        ("refused", "Refused and failed", refusals_section(results)),
        ("reproduce", "Reproduce", _reproduce(results)),
    ]
    links = [tag("li", tag("a", name, href=f"#{key}")) for key, name, part in parts if part]
    head = tag(
        "header", tag("h1", title), tag("p", _facts(results), class_="facts"), _notes(results)
    )
    menu = tag("nav", tag("ul", *links), aria_label="Parts of this page")
    return document(printable(title), tag("main", head, menu, *(part for _, _, part in parts)))


def _facts(results: Results) -> str:
    study, ran = results.study, len(results.observations) - len(results.failed)
    facts = [
        study.name if study.title else "",
        study.design.replace("_", " "),
        counted(len(results.findings.cells), "cell"),
        f"{counted(ran, 'run')} in {counted(study.repeats, 'repeat')}",
        f"{len(results.failed)} failed" if results.failed else "",
        f"{len(results.refusals)} refused" if results.refusals else "",
        f"baseline {results.findings.baseline}" if results.findings.baseline else "",
    ]
    return " · ".join(fact for fact in facts if fact)


def _notes(results: Results) -> Html | None:
    if not results.findings.notes:
        return None
    lines = tag("ul", *(tag("li", note) for note in results.findings.notes))
    heading = tag("h2", "What you must know", id="notes")
    return tag("section", heading, lines, class_="notes", aria_labelledby="notes")


def _short(results: Results, most: int = 8) -> Html:
    """What was shown to be better or worse, in the words of the findings."""
    found = results.findings
    contrasts = found.effects or found.contrasts
    metrics = {metric.key: metric for metric in results.compared}
    shown = [c for c in contrasts if c.verdict in ("better", "worse") and c.metric in metrics]
    if not contrasts:
        line = "There is nothing to compare: fewer than two cells have figures."
        return section("short", "In short", tag("p", line))
    if not shown:
        line = "Nothing was shown to be better or worse; the reasons are in the tables."
        return section("short", "In short", tag("p", line))
    first = [m.key for m in results.compared[:3]]
    kept = largest([c for c in shown if c.metric in first] or shown, most)
    lines = [
        tag(
            "li",
            label_of(c.metric),
            f" of {c.what} against {c.against}: ",
            effect(c.estimate, metrics.get(c.metric, Metric(c.metric))),
            ", ",
            tag("span", c.verdict, class_=f"verdict {c.verdict}"),
        )
        for c in kept
    ]
    rest = len(shown) - len(kept)
    more = tag("p", f"{rest} more are in the tables below.", class_="dim") if rest else None
    return section("short", "In short", tag("ul", *lines, class_="short"), more)


def _figures(plots: Sequence[Plot], without: str) -> Html | None:
    if without:
        return section("figures", "Figures", tag("p", without))
    if not plots:
        return None
    return section("figures", "Figures", *(_figure(plot) for plot in plots))


def _figure(plot: Plot) -> Html:
    drawings = [svg_of(panel, f"{plot.name}{place}") for place, panel in enumerate(plot.panels)]
    panels = [
        tag(
            "div",
            tag("p", panel.title, class_="dim"),
            tag("div", Html(drawing), role="img", aria_label=panel.alt),
            class_="panel",
        )
        for panel, drawing in zip(plot.panels, drawings, strict=True)
    ]
    legend = None
    if plot.legend:
        entries = (tag("li", _swatch(style), tag("span", name)) for name, style in plot.legend)
        legend = tag("ul", joined(entries), class_="legend", aria_label="Legend")
    return tag(
        "figure",
        tag("h3", plot.title),
        tag("figcaption", plot.about),
        legend,
        tag("div", *panels, class_="panels" if len(panels) > 1 else "panels one"),
    )


def _swatch(style: Mapping[str, Any]) -> Html:
    """What a line of the figure looks like."""
    colour = IN_PAGE.get(str(style["color"]), str(style["color"]))
    parts, dash = [], str(style.get("linestyle", "-"))
    if dash:
        width = min(float(style.get("linewidth", 1.6)), 8)
        parts.append(
            f'<path d="M0 7H30" stroke="{colour}" stroke-width="{width}" '
            f'stroke-dasharray="{DASH.get(dash, "none")}"/>'
        )
    marker = MARKERS.get(str(style.get("marker", "")), "")
    if marker == "●" and style.get("markerfacecolor") == "none":
        marker = "○"
    if marker:
        place = 'x="15" y="11.5" text-anchor="middle" font-size="13"'
        parts.append(f'<text {place} fill="{colour}">{marker}</text>')
    return Html(f'<svg width="30" height="14" aria-hidden="true">{"".join(parts)}</svg>')


def _reproduce(results: Results) -> Html:
    """The command, the study file and the manifest."""
    manifest = dict(results.manifest)
    command = manifest.get("command")
    line = (
        shlex.join(map(str, command)) if isinstance(command, list | tuple) else str(command or "")
    )
    parts: list[Content] = []
    if line:
        parts += [tag("p", "This command ran the study:"), tag("pre", line)]
    again = "Made again from the study's folder by: interlock study report DIR"
    parts.append(tag("p", again))
    text = manifest.get("study_file")
    if isinstance(text, str):
        parts.append(_detail("Study file", text))
    metrics = ", ".join(f"{titled(m.key)} is {m.key}" for m in results.compared)
    parts.append(tag("p", f"Metrics are keys of each run's summary.json: {metrics}.", class_="dim"))
    files = (
        "Beside this page: results.csv, cells.csv, findings.csv (and .parquet), plots/, "
        "and every run's folder in cells/."
    )
    parts.append(tag("p", files, class_="dim"))
    written = json.dumps(manifest, indent=1, default=str, ensure_ascii=False)
    parts.append(_detail("Manifest", written))
    return section("reproduce", "Reproduce", *parts)


def _detail(title: str, text: str) -> Html:
    """Folded text, whose lines stay lines."""
    lines = (printable(line.expandtabs()) for line in text.splitlines())
    body = joined(part for line in lines for part in (line, Html("\n")))
    return tag("details", tag("summary", title), tag("pre", body, tabindex="0"))
