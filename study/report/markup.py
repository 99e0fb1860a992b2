"""HTML from text that nobody has checked: all of it is escaped, here and nowhere else."""

import base64
import hashlib
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from importlib.resources import files

from interlock.study.report.words import printable


@dataclass(frozen=True)
class Html:
    """Markup that is safe to put into a page."""

    text: str

    def __str__(self) -> str:
        return self.text


Content = Html | str | None
"""A str is text and gets escaped."""


def safe(content: Content) -> str:
    """Markup as it is, text escaped, nothing for None."""
    if content is None:
        return ""
    return content.text if isinstance(content, Html) else escape(printable(content), quote=True)


def breakable(content: Content) -> Content:
    """A name such as `cache=radix,spec=none`, which may go on in a new line after its signs."""
    if not isinstance(content, str):
        return content
    return Html(safe(content).replace("=", "=<wbr>").replace(",", ",<wbr>"))


def tag(_name: str, *inside: Content, **attributes: str | bool | None) -> Html:
    """An element. `class_` is the attribute class, `data_v` data-v; None and False are left out."""
    parts = []
    for name, value in attributes.items():
        if value is not None and value is not False:
            key = name.rstrip("_").replace("_", "-")
            parts.append(f" {key}" if value is True else f' {key}="{safe(value)}"')
    return Html(f"<{_name}{''.join(parts)}>{''.join(map(safe, inside))}</{_name}>")


def joined(parts: Iterable[Content]) -> Html:
    """All of them, one after the other."""
    return Html("".join(map(safe, parts)))


def section(name: str, title: str, *inside: Content) -> Html:
    """A part of the page with a heading that links find."""
    heading = tag("h2", title, id=name)
    return tag("section", heading, *inside, aria_labelledby=name)


@dataclass(frozen=True)
class Field:
    """A cell of a table: what is shown, and the number it sorts by."""

    shown: Content
    value: float | None = None


def table(
    caption: str,
    columns: Sequence[str],
    rows: Sequence[tuple[Sequence[Field | str], str]],
    choices: Sequence[tuple[str, str]] = (),
    tools: bool = True,
) -> Html:
    """A table that scrolls in itself, is sorted by a click on a column and filtered by words.

    `rows`: fields, of which the first names the row, and the choice it belongs to; `choices`: keys
    and names of what one can look at alone.
    """
    first = choices[0][0] if len(choices) > 1 else ""
    head = [tag("th", tag("button", name, type="button"), scope="col") for name in columns]
    body = (
        tag(
            "tr",
            *(_field(field, place) for place, field in enumerate(fields)),
            data_choice=choice or None,
            hidden=bool(first) and choice != first,  # a script shows them, or <noscript>
        )
        for fields, choice in rows
    )
    grid = tag(
        "table",
        tag("caption", caption),
        tag("thead", tag("tr", *head)),
        tag("tbody", joined(body)),
    )
    box = tag("div", grid, class_="scroll", tabindex="0", role="region", aria_label=caption)
    return tag("div", _tools(caption, len(rows), choices) if tools else None, box, class_="grid")


def _field(field: Field | str, place: int) -> Html:
    given = field if isinstance(field, Field) else Field(field)
    value = given.value
    key = None if value is None or not math.isfinite(value) else f"{value:.6g}"
    if place == 0:
        return tag("th", breakable(given.shown), scope="row", data_v=key)
    return tag("td", given.shown, data_v=key)


def _tools(caption: str, rows: int, choices: Sequence[tuple[str, str]]) -> Html:
    search = tag("label", "Filter ", Html("<input type=search autocomplete=off>"))
    chosen = None
    if len(choices) > 1:
        options = [tag("option", name, value=key) for key, name in choices]
        chosen = tag(
            "label",
            "Show ",
            tag("select", *options, tag("option", "all", value="")),
            class_="choice",
        )
    count = tag("output", f"{rows} rows", aria_live="polite", aria_label=f"Rows of {caption}")
    return tag("div", chosen, search, count, class_="tools")


def document(title: str, *body: Content) -> str:
    """A whole page with its style and script inside, which asks nothing of any network."""
    assets = files("interlock.study.report")
    style = (assets / "report.css").read_text(encoding="utf-8")
    script = (assets / "report.js").read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f"<title>{safe(title)}</title>\n<style>\n{style}</style>\n"
        "<noscript><style>tr[hidden] { display: table-row; } .tools { display: none; }</style>"
        "</noscript></head>\n<body>\n"
        + "\n".join(map(safe, body))
        + f"\n<script>{script}</script>\n</body></html>\n"
    )
