"""Two studies beside each other, on a terminal and as a page."""

import argparse
import shlex
from pathlib import Path

from rich.console import Console
from rich.text import Text

from interlock.core.errors import ConfigError
from interlock.driver.run_folder import write_file
from interlock.study.compare import CellChange, Comparison, Side, compare
from interlock.study.folder import StudyFolder
from interlock.study.report.markup import (
    Content,
    Field,
    Html,
    document,
    joined,
    section,
    table,
    tag,
)
from interlock.study.report.page_tables import reach_of, whisker
from interlock.study.report.table import lines_of, table_of
from interlock.study.report.words import (
    corrected,
    counted,
    effect,
    is_defined,
    label_of,
    printable,
    titled,
)
from interlock.study.spec import Metric, Study


def compare_main(arguments: list[str]) -> int:
    """`interlock study compare FIRST SECOND`: print it and write its page; the exit status.

    Raises RunFolderError where one of the folders is no study's, ConfigError where they are one.
    """
    parser = argparse.ArgumentParser("interlock study compare", description=__doc__)
    parser.add_argument("first", type=Path, help="a study's folder")
    parser.add_argument("second", type=Path, help="another's, with some of the same cells")
    parser.add_argument("--html", type=Path, help="the page (default: in the second folder)")
    parsed = parser.parse_args(arguments)
    if parsed.first.resolve() == parsed.second.resolve():
        raise ConfigError(
            f"{parsed.first} and {parsed.second} are one study, which differs in nothing from "
            "itself; give the folders of two"
        )
    first, second = (side_of(StudyFolder(path)) for path in (parsed.first, parsed.second))
    names = str(parsed.first), str(parsed.second)
    found, console = compare(first, second), Console()
    print_comparison(console, found, first.study, names)
    page = parsed.html or parsed.second / f"compared_with_{parsed.first.resolve().name}.html"
    write_file(page, [comparison_page(found, first.study, names)])
    console.print(f"page: {page}", markup=False, highlight=False, soft_wrap=True)
    return 0


def side_of(folder: StudyFolder) -> Side:
    """What a comparison needs of a study's folder. Raises RunFolderError."""
    return Side(folder.study(), folder.cells(), tuple(folder.observations()), folder.manifest())


def print_comparison(
    console: Console, found: Comparison, study: Study, names: tuple[str, str], most: int = 30
) -> None:
    """Print notes, what differs around the runs, and the changes of each metric."""
    console.print(Text(f"{printable(names[0])} -> {printable(names[1])}", "bold"))
    if found.notes:
        console.print(lines_of("What you must know", found.notes, "yellow"))
    if found.differences:
        console.print(lines_of("What differs around the runs", found.differences, ""))
    for metric in _metrics(found, study):
        changes = [one for one in found.changes if one.metric == metric.key]
        made = table_of(f"{titled(metric.key)}, {metric.better} is better")
        whole = all(len(printable(one.cell)) <= console.width * 2 // 5 for one in changes)
        made.add_column("cell", overflow="fold", no_wrap=whole)  # names have no blanks
        for name in ("change", "p, corrected", "how"):
            made.add_column(name, overflow="fold")
        for one in _sorted(changes)[:most]:
            made.add_row(
                Text(printable(one.cell)),
                Text(effect(one.estimate, metric)),
                Text(corrected(one.estimate)),
                Text(printable(one.reason), "dim"),
            )
        console.print(made)
        if len(changes) > most:
            console.print(Text(f"{len(changes) - most} smaller changes are on the page", "dim"))
    if not found.changes:
        console.print(Text("\nNo cell of the first study is in the second."))
    for title, cells in _alone(found, names):
        console.print(lines_of(title, cells, ""))


def comparison_page(found: Comparison, study: Study, names: tuple[str, str]) -> str:
    """The same as a page that opens offline."""
    title = f"{found.first} and {found.second} compared"
    parts: list[Content] = []
    if found.notes:
        notes = tag("ul", *(tag("li", note) for note in found.notes))
        heading = tag("h2", "What you must know", id="notes")
        parts.append(tag("section", heading, notes, class_="notes", aria_labelledby="notes"))
    if found.differences:
        lines = tag("ul", *(tag("li", line) for line in found.differences))
        parts.append(section("around", "What differs around the runs", lines))
    parts.append(_changes(found, study))
    for place, (what, cells) in enumerate(_alone(found, names)):
        listed = tag("ul", *(tag("li", cell) for cell in cells))
        parts.append(section(f"alone{place}", what, listed))
    again = f"Made by: {shlex.join(['interlock', 'study', 'compare', *names])}"
    head = tag("header", tag("h1", title), tag("p", f"{names[0]} -> {names[1]}", class_="facts"))
    return document(printable(title), tag("main", head, *parts, tag("p", again, class_="dim")))


def _changes(found: Comparison, study: Study) -> Html:
    if not found.changes:
        line = "No cell of the first study is in the second."
        return section("changes", "Changes", tag("p", line))
    metrics = {metric.key: metric for metric in _metrics(found, study)}
    reach = {
        key: reach_of([one.estimate for one in found.changes if one.metric == key])
        for key in metrics
    }
    rows = []
    for one in found.changes:
        metric, estimate = metrics[one.metric], one.estimate
        drawn = whisker(estimate, None, reach[one.metric], "")
        fields: list[Field | str] = [
            one.cell,
            Field(joined((effect(estimate, metric), drawn)), estimate.value),
            Field(corrected(estimate), estimate.p_adjusted),
            Field(tag("span", one.reason, class_="how")),
            label_of(one.metric),
        ]
        rows.append((fields, one.metric))
    choices = [(key, f"{titled(key)}, {m.better} is better") for key, m in metrics.items()]
    caption = "From the first study to the second, by cell"
    heads = ["cell", "change", "p, corrected", "how", "metric"]
    return section("changes", "Changes", table(caption, heads, rows, choices))


def _metrics(found: Comparison, study: Study) -> list[Metric]:
    """Those that were compared, as the first study has them."""
    known = {metric.key: metric for metric in study.metrics}
    return [known.get(key, Metric(key)) for key in dict.fromkeys(c.metric for c in found.changes)]


def _sorted(changes: list[CellChange]) -> list[CellChange]:
    """The surest first."""
    return sorted(
        changes,
        key=lambda one: (
            one.estimate.p_adjusted,
            -abs(one.estimate.value) if is_defined(one.estimate.value) else 0.0,
        ),
    )


def _alone(found: Comparison, names: tuple[str, str]) -> list[tuple[str, tuple[str, ...]]]:
    sides = ((found.only_first, names[0]), (found.only_second, names[1]))
    return [
        (f"{counted(len(cells), 'cell')} only in {name}", cells) for cells, name in sides if cells
    ]
