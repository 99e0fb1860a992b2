"""Cells from choices of levels: ids, and the order in which overrides apply."""

import hashlib
import re
from collections.abc import Iterable, Mapping

from interlock.study.spec import Cell, Study

LONGEST_ID = 120
"""Characters; file systems take 255, of which a run's temporary files need some."""


def cell_of(study: Study, levels: Mapping[str, str]) -> Cell:
    """The cell of a level for each factor (those left out: the baseline's)."""
    full = {f.name: levels.get(f.name, f.levels[0].name) for f in study.factors}
    overrides = list(study.base)
    for factor in study.factors:
        overrides += factor.level(full[factor.name]).overrides
    return Cell(cell_id(full), full, tuple(overrides))


def cell_id(levels: Mapping[str, str]) -> str:
    """`cache=radix,spec=eagle`: unique, and the name of a folder on any file system."""
    text = ",".join(f"{factor}={level}" for factor, level in levels.items())
    safe = re.sub(r"[^A-Za-z0-9._=,+-]", "_", text)
    if safe == text and len(text) <= LONGEST_ID:
        return text
    digest = hashlib.sha256(text.encode()).hexdigest()[:8]
    return f"{safe[:LONGEST_ID]}~{digest}"


def unique(study: Study, choices: Iterable[Mapping[str, str]]) -> tuple[Cell, ...]:
    """The cells of these choices, each once, the baseline's first."""
    found: dict[str, Cell] = {}
    for levels in ({}, *choices):
        cell = cell_of(study, levels)
        found.setdefault(cell.id, cell)
    return tuple(found.values())
