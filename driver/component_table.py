"""The component table of the README: `python -m interlock.driver.component_table` renews it."""

import re
from collections.abc import Iterator
from importlib.metadata import distribution
from pathlib import Path

from interlock.core.registry import Registry, build_registry
from interlock.core.seams import SEAMS

BEGIN, END = "<!-- components -->", "<!-- end of components -->"


def component_table(registry: Registry) -> str:
    """Every seam with what it decides and its choices, in Markdown."""
    return "\n".join(_rows(registry))


def _rows(registry: Registry) -> Iterator[str]:
    yield "| seam | what it decides | choices |"
    yield "|---|---|---|"
    for seam in SEAMS.values():
        names = [name for key, name in registry.components if key == seam.key]
        choices = "; ".join(
            f"`{name}` {registry.components[seam.key, name].summary}" for name in sorted(names)
        )
        yield f"| `{seam.key}=` | {seam.summary} | {choices} |"


def built_in_registry() -> Registry:
    """Interlock's own components, whatever else is installed."""
    points = [p for p in distribution("interlock").entry_points if p.group == "interlock"]
    return build_registry(points)


def renewed(readme: str, registry: Registry) -> str:
    """The README's text with the table between its markers."""
    table = f"{BEGIN}\n{component_table(registry)}\n{END}"
    return re.sub(f"{BEGIN}.*{END}", lambda _: table, readme, flags=re.DOTALL)


if __name__ == "__main__":
    page = Path("README.md")
    page.write_text(renewed(page.read_text("utf-8"), built_in_registry()), "utf-8")
