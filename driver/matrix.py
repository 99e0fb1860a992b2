"""The compatibility page, derived: `python -m interlock.driver.matrix` writes the committed one."""

import argparse
import dataclasses
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from interlock.conf.find_model import describe_models
from interlock.core.model import ModelDescription
from interlock.core.registry import Registry
from interlock.core.resolver import reasons_against
from interlock.core.seams import SEAMS
from interlock.core.settings import Choice, EngineConfig
from interlock.driver.component_table import built_in_registry


@dataclass(frozen=True)
class Row:
    """Two choices that no composition can hold together for this model, and why."""

    model: str
    first: str
    second: str
    reasons: tuple[str, ...]


def compatibility_matrix(
    registry: Registry, models: Sequence[ModelDescription], base: EngineConfig
) -> list[Row]:
    """Every incompatible choice or pair of choices; all other pairs are accepted.

    A choice is out for a model when changing the other choices of `base` cannot make a composition
    with it accepted; a pair, likewise, when its parts are not out by themselves.
    """
    rows: list[Row] = []
    for model in models:
        accepted = _Accepted(registry, model, base)
        alone = {c: r for c in registry.components if (r := accepted.reasons(c))}
        rows += [Row(model.name, _typed(c), "", reasons) for c, reasons in alone.items()]
        rest = [c for c in registry.components if c not in alone]
        for first, second in itertools.combinations(rest, 2):
            if first[0] != second[0] and (reasons := accepted.reasons(first, second)):
                rows.append(Row(model.name, _typed(first), _typed(second), reasons))
    return rows


@dataclass(frozen=True)
class _Accepted:
    registry: Registry
    model: ModelDescription
    base: EngineConfig

    def reasons(self, *fixed: tuple[str, str]) -> tuple[str, ...]:
        """() when some composition with these choices is accepted, else what stays in the way.

        Other choices are changed one at a time, each time by one that leaves fewer problems.
        """
        free = [c for c in self.registry.components if c[0] not in {seam for seam, _ in fixed}]
        choices, problems = fixed, self._problems(fixed)
        while problems:
            better = ((*choices, c) for c in free)
            step = next((b for b in better if len(self._problems(b)) < len(problems)), None)
            if step is None:
                break
            choices, problems = step, self._problems(step)
        return problems

    def _problems(self, choices: Sequence[tuple[str, str]]) -> tuple[str, ...]:
        chosen = dict(self.base.choices)
        for seam, name in choices:
            chosen[seam] = Choice(name, self._config(seam, name))
        config = dataclasses.replace(self.base, choices=chosen)
        where, name = str(self.model.directory), f"models/{self.model.name}"
        reasons = reasons_against(config, self.registry, [self.model])
        return tuple(reason.replace(where, name) for reason in reasons)

    def _config(self, seam: str, name: str) -> Any:
        """Default options; an empty text option (a path) is one the user must give: a stand-in."""
        config = self.registry.components[seam, name].config()
        empty = {
            f.name: "FILE" for f in dataclasses.fields(config) if getattr(config, f.name) == ""
        }
        return dataclasses.replace(config, **empty)


def render(registry: Registry, models: Sequence[ModelDescription], base: EngineConfig) -> str:
    """The page in Markdown."""
    rows = compatibility_matrix(registry, models, base)
    return "\n".join([*_head(registry, models), *_table(rows)]) + "\n"


def _head(registry: Registry, models: Sequence[ModelDescription]) -> Iterator[str]:
    yield "# Which components go together"
    yield ""
    yield "Generated from the components' capabilities by `python -m interlock.driver.matrix`."
    yield "Every combination that is not ruled out below is accepted for these models:"
    yield ", ".join(f"{m.name} ({', '.join(sorted(m.forms))} attention)" for m in models) + "."
    yield ""
    yield "| seam | choices |"
    yield "|---|---|"
    for seam in SEAMS:
        yield f"| `{seam}` | {', '.join(registry.names(seam))} |"


def _table(rows: Sequence[Row]) -> Iterator[str]:
    yield ""
    yield "## Refused"
    yield ""
    yield "| model | choice | with | why |"
    yield "|---|---|---|---|"
    for row in rows:
        with_ = f"`{row.second}`" if row.second else "anything"
        yield f"| {row.model} | `{row.first}` | {with_} | {'; '.join(row.reasons)} |"


def built_in_page() -> str:
    """The page of Interlock's own components over the shipped models."""
    from interlock.conf.hydra_edge import compose

    registry = built_in_registry()
    base = compose((), registry)
    return render(registry, describe_models(base, registry), base)


def _typed(choice: tuple[str, str]) -> str:
    return f"{choice[0]}={choice[1]}"


def main() -> None:
    """Write the page."""
    parser = argparse.ArgumentParser(description="Write the page of which components go together.")
    parser.add_argument("page", nargs="?", type=Path, default=Path("docs/compatibility.md"))
    parser.parse_args().page.write_text(built_in_page(), encoding="utf-8")


if __name__ == "__main__":
    main()
