"""How every plot looks, to colour-blind people as well, and how figures become files."""

import io
import math
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from interlock.driver.run_folder import write_bytes
from interlock.study.report.export import MissingExtraError
from interlock.study.report.words import shortened

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK, MUTED, GRID = "#1b1f24", "#656d76", "#d5d9de"
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
"""Okabe and Ito's, without black, which is the baseline's, and yellow, which white hides."""
DASHES = ("-", "--", "-.", ":")
IN_PAGE = {INK: "var(--ink)", MUTED: "var(--muted)", GRID: "var(--grid)"}
IN_PAGE |= {colour: f"var(--c{place})" for place, colour in enumerate(COLOURS)}
"""Colours that a page chooses for light and for dark."""
FILE_IN, PAGE_IN = 5.0, 3.5
"""Width of a panel in a file, and on a page: its letters are legible on a phone of 360 pixels."""
SETTINGS: dict[Any, Any] = {
    "font.size": 9,
    "font.family": "sans-serif",
    "text.parse_math": False,  # a dollar sign in a name is a dollar sign
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": MUTED,
    "axes.titlesize": 10,
    "axes.titlelocation": "left",
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "grid.color": GRID,
    "grid.linewidth": 0.6,
    "xtick.color": INK,
    "ytick.color": INK,
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
    "legend.frameon": False,
    "legend.fontsize": 8,
    "svg.fonttype": "none",
    "svg.hashsalt": "interlock",
}
Style = Mapping[str, Any]


@dataclass(frozen=True)
class Panel:
    """One set of axes, drawn alone on a page and beside its likes in a file."""

    title: str
    draw: Callable[["Axes"], None]
    alt: str
    """What one sees there, for who does not."""
    height_in: float = 3.0


@dataclass(frozen=True)
class Plot:
    """Panels with one legend, and what a reader must know of them."""

    name: str
    """Of its files."""
    title: str
    about: str
    """How to read it, and what was left out."""
    panels: Sequence[Panel]
    legend: Sequence[tuple[str, Style]] = field(default_factory=tuple)
    """Names and how their lines look (keywords of matplotlib's Line2D)."""


def line_style(place: int, baseline: bool = False) -> dict[str, Any]:
    """The look of the line at `place`: colour and dashes, so that either is enough."""
    if baseline:
        return {"color": INK, "linestyle": "-", "linewidth": 2.2}
    dash = DASHES[(place // len(COLOURS) + place) % len(DASHES)]
    return {"color": COLOURS[place % len(COLOURS)], "linestyle": dash, "linewidth": 1.6}


@contextmanager
def drawing() -> Iterator[None]:
    """Matplotlib's settings for a while. Raises MissingExtraError where it is not installed."""
    try:
        import matplotlib as mpl
    except ImportError as error:
        needed = f"figures need matplotlib ({error}): pip install 'interlock[plot]'"
        raise MissingExtraError(needed) from error
    with mpl.rc_context(SETTINGS), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing")  # of names in other scripts
        yield


def write_plot(plot: Plot, directory: Path) -> list[Path]:
    """Write `<name>.png` and `<name>.svg`; their paths. RunFolderError names one that cannot be."""
    columns = 1 if len(plot.panels) == 1 else 2
    rows = -(-len(plot.panels) // columns)
    heights = [max(p.height_in for p in plot.panels[i * columns :][:columns]) for i in range(rows)]
    lines = len(plot.legend) // (2 if columns > 1 else 1) + 1
    size = (FILE_IN * columns, sum(heights) + 0.5 + 0.2 * lines)
    with drawing():
        from matplotlib.figure import Figure

        figure = Figure(figsize=size, layout="constrained")
        axes = figure.subplots(rows, columns, squeeze=False, height_ratios=heights).flatten()
        for axis, panel in zip(axes, plot.panels, strict=False):
            axis.set_title(shortened(panel.title, 62))
            panel.draw(axis)
        for axis in axes[len(plot.panels) :]:
            axis.set_visible(False)
        figure.suptitle(plot.title, x=0.01, ha="left", fontsize=11, fontweight="bold")
        _legend(figure, plot, columns)
        png, svg = io.BytesIO(), io.BytesIO()
        figure.draw_without_rendering()
        figure.set_layout_engine("none")  # the layout is made once for both files
        figure.savefig(png, format="png", dpi=130, facecolor="white")
        figure.savefig(svg, format="svg", metadata={"Date": None}, facecolor="white")
    drawn = {directory / f"{plot.name}.png": png, directory / f"{plot.name}.svg": svg}
    for path, content in drawn.items():
        write_bytes(path, content.getvalue())
    return list(drawn)


def _legend(figure: "Figure", plot: Plot, columns: int) -> None:
    from matplotlib.lines import Line2D

    if plot.legend:
        names = [shortened(name, 60) for name, _ in plot.legend]
        lines = [Line2D([], [], **dict(style)) for _, style in plot.legend]
        longest = max(map(len, names))
        across = max(1, min(len(names), 55 * columns // (longest + 8)))
        figure.legend(lines, names, loc="outside lower left", ncols=across)


def svg_of(panel: Panel, prefix: str) -> str:
    """The panel as an <svg> element for a page: its ink follows the page's colours.

    `prefix` keeps its ids apart from those of other elements.
    """
    with drawing():
        from matplotlib.figure import Figure

        figure = Figure(figsize=(PAGE_IN, panel.height_in), layout="constrained")
        panel.draw(figure.subplots())
        buffer = io.StringIO()
        nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        figure.savefig(buffer, format="svg", transparent=True, metadata=nothing)
    text = buffer.getvalue()
    return tidied(text[text.index("<svg") :], prefix)


def tidied(svg: str, prefix: str) -> str:
    """The same drawing, smaller: own ids, colours of the page, coordinates to a tenth."""
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r"<!--.*?-->", "", svg, flags=re.DOTALL)
    svg = re.sub(r"<[^>]+>", lambda found: _lighter(_own_ids(found[0], prefix)), svg)
    size = re.search(r'viewBox="[^"]*"', svg)
    head = f'<svg {size[0] if size else ""} aria-hidden="true" focusable="false">'
    return re.sub(r"\n\s*", "\n", head + svg[svg.index(">") + 1 :]).strip()


def _own_ids(tag: str, prefix: str) -> str:
    tag = re.sub(r'\bid="', f'id="{prefix}-', tag)
    tag = re.sub(r'(href=")#', rf"\1#{prefix}-", tag)
    return tag.replace("url(#", f"url(#{prefix}-")


def _lighter(tag: str) -> str:
    for colour, variable in IN_PAGE.items():
        tag = tag.replace(colour, variable)
    return re.sub(r"\d+\.\d{2,}", lambda number: f"{float(number[0]):.1f}", tag)


def log_where_wide(axis: "Axes", values: Sequence[float], which: str, factor: float = 30) -> None:
    """A logarithmic axis ("x" or "y") for positive values that span more than `factor`."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    if not values or min(values) <= 0 or max(values) <= factor * min(values):
        return
    (axis.set_xscale if which == "x" else axis.set_yscale)("log")
    side = axis.xaxis if which == "x" else axis.yaxis
    decades = math.log10(max(values) / min(values))
    side.set_major_locator(LogLocator(subs=(1.0, 3.0) if decades < 3 else (1.0,)))
    side.set_major_formatter(FuncFormatter(lambda value, _place: f"{value:g}"))
    side.set_minor_formatter(NullFormatter())
