"""Cells from choices of levels: ids, and the order in which overrides apply."""

import hashlib
import re
from collections.abc import Iterable, Mapping

from interlock.study.spec import Cell, Study

LONGEST_ID = 120
"""Characters; file systems take 255, of which a run's temporary files need some."""


SEVERAL = re.compile(r"^([\w./+]+)=([^\[\]{}'\"(),]+(?:,[^\[\]{}'\"(),]+)+)$")
"""An override of several values, of which a search picks one."""


def cell_of(
    study: Study, levels: Mapping[str, str], picks: Mapping[str, str] | None = None
) -> Cell:
    """The cell of a level for each factor (those left out: the baseline's).

    `picks`: in a search, the value of each key that a level gives several (else: the first).
    """
    full = {f.name: levels.get(f.name, f.levels[0].name) for f in study.factors}
    overrides, named = list(study.base), dict(full)
    for factor in study.factors:
        for text in factor.level(full[factor.name]).overrides:
            several = choices_of(text) if study.design == "search" else None
            if several is not None:
                key, values = several
                named[key] = (picks or {}).get(key, values[0])
                text = f"{key}={named[key]}"
            overrides.append(text)
    return Cell(cell_id(named), full, tuple(overrides))


def choices_of(override: str) -> tuple[str, tuple[str, ...]] | None:
    """The key and the values of an override of several, `key=a,b`; None of a plain one."""
    found = SEVERAL.match(override)
    return (found[1], tuple(found[2].split(","))) if found else None


def cell_id(levels: Mapping[str, str]) -> str:
    """`cache=radix,spec=eagle`: unique, and the name of a folder on any file system."""
    text = ",".join(f"{factor}={level}" for factor, level in levels.items())
    safe = re.sub(r"[^A-Za-z0-9._=,+-]", "_", text)
    if safe == text and len(text) <= LONGEST_ID:
        return text
    digest = hashlib.sha256(text.encode()).hexdigest()[:8]
    return f"{safe[:LONGEST_ID]}~{digest}"


def unique(study: Study, choices: Iterable[Mapping[str, str]]) -> tuple[Cell, ...]:
    """The cells of these choices, each once, the baseline's first and those beside it last."""
    found: dict[str, Cell] = {}
    for levels in ({}, *choices):
        cell = cell_of(study, levels)
        found.setdefault(cell.id, cell)
    for one in study.also:
        found[cell_id({"also": one.name})] = Cell(
            cell_id({"also": one.name}), {}, (*study.base, *one.overrides)
        )
    return tuple(found.values())
