"""What each cell's own runs were, and which cells no other beats."""

from collections.abc import Mapping, Sequence
from statistics import median

from interlock.study.findings import CellSummary
from interlock.study.layout import Block, block_of
from interlock.study.pairs import Activity
from interlock.study.spec import Cell, Metric, Observation, Study, observed

Medians = Mapping[str, float | None]


def summaries(
    study: Study, cells: Sequence[Cell], observations: Sequence[Observation], activity: Activity
) -> tuple[CellSummary, ...]:
    """Every cell in order. A second run of an A/A pair counts as a run, not in the figures.

    Neither do the runs that a search makes again of some cells, whose workloads the others have
    not served.
    """
    runs = {cell.id: [one for one in observations if one.cell == cell.id] for cell in cells}
    values = {
        id: {m.key: _values(of, m.key, study.repeats) for m in study.metrics}
        for id, of in runs.items()
    }
    medians = {
        id: {k: median(v) if v else None for k, v in of.items()} for id, of in values.items()
    }
    front = pareto(study.metrics[:2], medians, rivals(observations))
    return tuple(
        CellSummary(
            cell=id,
            num_runs=sum(not one.failure for one in of),
            num_failed=sum(bool(one.failure) for one in of),
            medians=medians[id],
            lows={k: min(v, default=None) for k, v in values[id].items()},
            highs={k: max(v, default=None) for k, v in values[id].items()},
            inert=activity.inert(id),
            equal_tokens=min(
                (one.equal_tokens for one in of if one.equal_tokens is not None), default=None
            ),
            quality=_quality(of),
            pareto=id in front,
        )
        for id, of in runs.items()
    )


def pareto(
    metrics: Sequence[Metric], medians: Mapping[str, Medians], groups: Mapping[str, object]
) -> set[str]:
    """Cells than which none of their group is as good in all metrics and better in one.

    Cells without one of the figures are not among them.
    """
    points = {}
    for cell, found in medians.items():
        values = [found[metric.key] for metric in metrics]
        if metrics and all(value is not None for value in values):
            signs = [1 if metric.better == "lower" else -1 for metric in metrics]
            points[cell] = [s * v for s, v in zip(signs, values, strict=True) if v is not None]

    def beaten(cell: str) -> bool:
        mine = points[cell]
        rivals = [p for other, p in points.items() if groups.get(other) == groups.get(cell)]
        return any(p != mine and all(a <= b for a, b in zip(p, mine, strict=True)) for p in rivals)

    return {cell for cell in points if not beaten(cell)}


def rivals(observations: Sequence[Observation]) -> dict[str, int]:
    """Cell -> the number of its group: those that served a workload in common."""
    groups: list[tuple[set[str], set[Block]]] = []
    for one in observed(observations):
        cells, blocks = {one.cell}, {block_of(one)}
        for group in [group for group in groups if group[0] & cells or group[1] & blocks]:
            cells, blocks = cells | group[0], blocks | group[1]
            groups.remove(group)
        groups.append((cells, blocks))
    return {cell: number for number, (cells, _) in enumerate(groups) for cell in cells}


def _values(runs: Sequence[Observation], key: str, repeats: int) -> list[float]:
    figured = (one for one in runs if not one.failure and one.replica == 0 and one.repeat < repeats)
    return [value for one in figured if (value := one.values.get(key)) is not None]


def _quality(runs: Sequence[Observation]) -> dict[str, float]:
    keys = sorted({key for one in runs for key in one.quality})
    return {key: median(o.quality[key] for o in runs if key in o.quality) for key in keys}
