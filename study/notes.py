"""Sentences that a reader of a study must see beside its numbers."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence

from interlock.study.comparisons import MetricComparisons, name
from interlock.study.effects import Model
from interlock.study.findings import Drift
from interlock.study.layout import block_of
from interlock.study.pairs import Activity
from interlock.study.spec import Cell, Observation, Refusal, Study, observed


def notes(
    study: Study,
    cells: Sequence[Cell],
    observations: Sequence[Observation],
    refusals: Sequence[Refusal],
    references: Mapping[str, str],
    found: Sequence[MetricComparisons],
    drifts: Sequence[Drift],
    lossy: Collection[str] = (),
) -> tuple[str, ...]:
    """All of them, the most serious first. `lossy`: the ids of cells that the study calls so."""
    return tuple([
        *_tokens(study, cells, observations, lossy),
        *_searched(study, observations),
        *_failures(observations),
        *_refused(refusals),
        *_workloads(references, observations),
        *_unusable(found),
        *_aliased(next((m.model for m in found if m.model), None)),
        *_drift(study, observations, drifts),
        *_idle(cells, Activity(observations)),
    ])  # fmt: skip


def _tokens(
    study: Study,
    cells: Sequence[Cell],
    observations: Sequence[Observation],
    declared: Collection[str],
) -> Iterable[str]:
    """Lossless arms must give the baseline's tokens; one that does not compares different work."""
    lossy = set(declared) | {
        cell.id
        for cell in cells
        for factor in study.factors
        if factor.name in cell.levels and factor.level(cell.levels[factor.name]).lossy
    }
    for cell in cells:
        shares = [o.equal_tokens for o in observed(observations) if o.cell == cell.id]
        least = min((share for share in shares if share is not None), default=1.0)
        if least < 1 and cell.id not in lossy:
            yield (
                f"{cell.id} is lossless, yet only {least:.2%} of its tokens equal the baseline's: "
                "rounding, or a defect; read its figures with care."
            )


def _searched(study: Study, observations: Sequence[Observation]) -> Iterable[str]:
    if study.design == "search":
        again = sorted({one.cell for one in observations if one.repeat >= study.repeats})
        what = f"{', '.join(again)}, run again" if again else "no cell, as none was run again"
        yield (
            "A search tries cells one after the other, so that drift and chance are part of why "
            f"one leads it. Compared is {what} in shuffled blocks after the search."
        )


def _failures(observations: Sequence[Observation]) -> Iterable[str]:
    reasons = Counter((one.cell, one.failure) for one in observations if one.failure)
    for (cell, reason), times in reasons.items():
        runs = f"{times} run{'s' * (times != 1)}"
        yield f"{cell}: {runs} failed and left their pairs out: {reason}"


def _refused(refusals: Sequence[Refusal]) -> Iterable[str]:
    if refusals:
        cells = ", ".join(refusal.cell.id for refusal in refusals)
        yield f"Refused before they ran, and in no comparison ({len(refusals)}): {cells}."


def _workloads(references: Mapping[str, str], observations: Sequence[Observation]) -> Iterable[str]:
    ran = observed(observations)
    served = {block_of(one) for one in ran}
    if len(served) == len({block[0] for block in served}):
        return
    yield (
        "Not all cells served the same workload. Runs of different workloads are never paired: "
        "each cell is compared within its own, and levels that change the workload with nothing."
    )
    blocks: dict[str, set[object]] = {}
    for one in ran:
        blocks.setdefault(one.cell, set()).add(block_of(one))
    for cell, other in references.items():
        if cell in blocks and not blocks[cell] & blocks.get(other, set()):
            yield f"{cell} served a workload that no other served: it is compared with nothing."


def _unusable(found: Sequence[MetricComparisons]) -> Iterable[str]:
    for one in found:
        if one.layout.unusable:
            metric = one.layout.metric
            why = "no figure" if metric.scale == "difference" else "no figure above zero"
            yield f"{metric.key}: {one.layout.unusable} runs have {why} and left their pairs out."


def _aliased(model: Model | None) -> Iterable[str]:
    if model is None:
        return
    for key in model.aliased_mains:
        yield f"The effect of {name(key)} is not estimated: no runs tell it from other terms."
    by_pair: dict[tuple[str, str], list[str]] = {}
    for a, b in model.aliased:
        by_pair.setdefault((a[0], b[0]), []).append(f"{name(a)} with {name(b)}")
    estimated = {(a[0], b[0]) for a, b in model.interactions}
    for (first, second), terms in by_pair.items():
        which = ", ".join(terms) if (first, second) in estimated else f"{first} with {second}"
        yield (
            f"Interactions not estimated, and taken as none: {which}. The cells that ran do not "
            "tell them from other terms."
        )


def _drift(
    study: Study, observations: Sequence[Observation], drifts: Sequence[Drift]
) -> Iterable[str]:
    for drift in drifts:
        if drift.p * max(len(drifts), 1) < 0.05:
            order = (
                "cells ran in one fixed order, so this may favour those that ran at one end"
                if _fixed_order(observations) and study.repeats > 1
                else "cells ran in random order, so this favours none and is part of the noise"
            )
            slope = f"{drift.metric} drifted by {drift.per_run:+.3%} a run (p = {drift.p:.1g})"
            yield f"{slope}; {order}."


def _fixed_order(observations: Sequence[Observation]) -> bool:
    """True when every block ran its cells in the same order."""
    orders: dict[int, list[str]] = {}
    for one in sorted(observations, key=lambda one: one.place):
        if one.replica == 0:
            orders.setdefault(one.repeat, []).append(one.cell)
    return len(orders) > 1 and len({tuple(order) for order in orders.values()}) == 1


def _idle(cells: Sequence[Cell], activity: Activity) -> Iterable[str]:
    """What never acted in any cell."""
    inert = [set(activity.inert(cell.id)) for cell in cells]
    everywhere = sorted(set.intersection(*inert)) if inert else []
    if everywhere:
        yield f"Never acted in any cell: {', '.join(everywhere)}."
