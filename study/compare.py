"""Two studies beside each other: the same cells, run at two times, by two versions or machines.

A cell that both have is paired repeat by repeat where the workloads' hashes agree. Nothing ran the
two in one shuffled order, so a difference may be the machine's as well as the code's: what
differs around them is listed beside the numbers, and no verdict is given.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from interlock.study.corrections import holm
from interlock.study.findings import Estimate
from interlock.study.layout import Block, Floats, Layout, lay_out, off_scale
from interlock.study.spec import Cell, Metric, Observation, Study
from interlock.study.special import t_quantile, t_two_sided

ABOUT = ("python", "platform", "packages", "device", "cpu", "cores", "threads", "git", "versions")
"""Parts of a study's manifest that may explain a difference."""


@dataclass(frozen=True)
class Side:
    """One of the two studies, as its folder holds it."""

    study: Study
    cells: tuple[Cell, ...]
    observations: tuple[Observation, ...]
    manifest: Mapping[str, Any]


@dataclass(frozen=True)
class CellChange:
    """What one metric of one cell changed by, from the first study to the second."""

    metric: str
    cell: str
    estimate: Estimate
    """NaN and num_pairs below 2 where there is too little to say."""
    paired: bool
    """False: the workloads differ, so that the runs are two samples and not pairs."""
    reason: str


@dataclass(frozen=True)
class Comparison:
    """All of it."""

    first: str
    second: str
    changes: tuple[CellChange, ...]
    only_first: tuple[str, ...]
    only_second: tuple[str, ...]
    differences: tuple[str, ...]
    """What differs around the runs, each as `key: first -> second`."""
    notes: tuple[str, ...]


def compare(first: Side, second: Side) -> Comparison:
    """The second study against the first, over the metrics and cells that both have."""
    ours, theirs = ({cell.id for cell in side.cells} for side in (first, second))
    shared = [cell.id for cell in first.cells if cell.id in theirs]
    keys = {metric.key for metric in second.study.metrics}
    metrics = [metric for metric in first.study.metrics if metric.key in keys]
    changes = [change for metric in metrics for change in _changes(metric, shared, first, second)]
    return Comparison(
        first=first.study.name,
        second=second.study.name,
        changes=tuple(changes),
        only_first=tuple(cell.id for cell in first.cells if cell.id not in theirs),
        only_second=tuple(cell.id for cell in second.cells if cell.id not in ours),
        differences=tuple(_differences(first.manifest, second.manifest)),
        notes=tuple(_notes(first, second, shared, changes)),
    )


def _changes(metric: Metric, cells: Sequence[str], first: Side, second: Side) -> list[CellChange]:
    """One metric, its p values corrected over the cells."""
    confidence = first.study.confidence
    before, after = (lay_out(metric, cells, side.observations) for side in (first, second))
    found = [_change(metric, cell, before, after, confidence) for cell in cells]
    adjusted = holm([one.estimate.p for one in found])
    return [
        CellChange(
            one.metric, one.cell,
            Estimate(one.estimate.value, one.estimate.low, one.estimate.high, one.estimate.p, p,
                     one.estimate.num_pairs),
            one.paired, one.reason,
        )
        for one, p in zip(found, adjusted, strict=True)
    ]  # fmt: skip


def _change(
    metric: Metric, cell: str, before: Layout, after: Layout, confidence: float
) -> CellChange:
    old, new = _by_block(before, cell), _by_block(after, cell)
    both = sorted(old.keys() & new.keys())
    if both:
        gaps = np.array([new[block] - old[block] for block in both])
        mean, error, df = _one_sample(gaps)
        reason = f"{len(both)} pairs of runs with equal workloads"
    else:
        mean, error, df = _welch(np.array(list(old.values())), np.array(list(new.values())))
        reason = f"no workload in common: {len(old)} runs against {len(new)}, not paired"
    estimate = _estimate(metric, mean, error, df, confidence, len(both) or min(len(old), len(new)))
    return CellChange(metric.key, cell, estimate, bool(both), reason)


def _by_block(layout: Layout, cell: str) -> dict[Block, float]:
    rows = {block: layout.row(cell, block) for block in layout.blocks_of(cell)}
    return {block: float(layout.values_N[row]) for block, row in rows.items() if row is not None}


def _one_sample(gaps: Floats) -> tuple[float, float, float]:
    """Mean, standard error and degrees of freedom of paired differences."""
    if len(gaps) < 2:
        return float(gaps.mean()), math.nan, 0
    return float(gaps.mean()), float(gaps.std(ddof=1) / math.sqrt(len(gaps))), len(gaps) - 1


def _welch(old: Floats, new: Floats) -> tuple[float, float, float]:
    """Of two samples of unequal variances (Welch, Biometrika 34, 1947)."""
    if min(len(old), len(new)) < 2:
        mean = float(new.mean() - old.mean()) if min(len(old), len(new)) else math.nan
        return mean, math.nan, 0
    parts = [float(of.var(ddof=1)) / len(of) for of in (old, new)]
    total = sum(parts)
    spread = sum(part**2 / (len(of) - 1) for part, of in zip(parts, (old, new), strict=True))
    df = total**2 / spread if spread else math.inf
    return float(new.mean() - old.mean()), math.sqrt(total), df


def _estimate(
    metric: Metric, mean: float, error: float, df: float, confidence: float, count: int
) -> Estimate:
    if math.isnan(error) or df <= 0:
        value = off_scale(metric, mean) if math.isfinite(mean) else math.nan
        return Estimate(value, math.nan, math.nan, 1.0, 1.0, count)
    if error < 1e-14:
        mean = 0.0 if abs(mean) < 1e-12 else mean
        p = float(mean == 0)
        value = off_scale(metric, mean)
        return Estimate(value, value, value, p, p, count)
    half = t_quantile(confidence, df) * error
    ends = [off_scale(metric, x) for x in (mean, mean - half, mean + half)]
    p = t_two_sided(mean / error, df)
    return Estimate(ends[0], ends[1], ends[2], p, p, count)


def _differences(first: Mapping[str, Any], second: Mapping[str, Any]) -> list[str]:
    old, new = (
        {k: v for key in ABOUT for k, v in _flat(key, of.get(key)) if v is not None}
        for of in (first, second)
    )
    return [
        f"{key}: {_word(old.get(key))} -> {_word(new.get(key))}"
        for key in sorted(old.keys() | new.keys())
        if old.get(key) != new.get(key)
    ]


def _flat(key: str, value: Any) -> list[tuple[str, Any]]:
    if isinstance(value, Mapping):
        return [leaf for name, item in value.items() for leaf in _flat(f"{key}.{name}", item)]
    return [(key, value)]


def _word(value: Any) -> str:
    return "none" if value is None else str(value)


def _notes(
    first: Side, second: Side, shared: Sequence[str], changes: Sequence[CellChange]
) -> list[str]:
    notes = [
        "The two studies ran at different times: a difference may be the machine's. Run both in "
        "one study, as levels of a factor, to tell."
    ]
    unpaired = sorted({one.cell for one in changes if not one.paired})
    if unpaired:
        notes.append(
            f"Different workloads, so that runs are not paired and the difference may be the "
            f"workload's: {', '.join(unpaired)}."
        )
    old, new = ({c.id: c.overrides for c in side.cells} for side in (first, second))
    changed: dict[str, list[str]] = {}
    for cell in shared:
        if old[cell] != new[cell]:
            changed.setdefault(_other_overrides(old[cell], new[cell]), []).append(cell)
    for what, cells in changed.items():
        notes.append(f"The same name with other overrides ({what}): {', '.join(cells)}.")
    keys = [[metric.key for metric in side.study.metrics] for side in (first, second)]
    if alone := _each_alone(*keys):
        notes.append(f"Metrics that one study has alone are not compared: {alone}.")
    return notes


def _other_overrides(old: Sequence[str], new: Sequence[str]) -> str:
    return _each_alone(old, new) or "in another order"


def _each_alone(old: Sequence[str], new: Sequence[str]) -> str:
    """What only the first and what only the second has; empty where they have the same."""
    sides = (("first", old, new), ("second", new, old))
    found = [(name, [one for one in mine if one not in theirs]) for name, mine, theirs in sides]
    return "; ".join(f"only in the {name} {', '.join(alone)}" for name, alone in found if alone)
