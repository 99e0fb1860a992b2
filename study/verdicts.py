"""From measured comparisons to verdicts: correction, noise floor, and the sentence why."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from interlock.study.bootstrap import Measured
from interlock.study.comparisons import LEAST_PAIRS, Compared, MetricComparisons
from interlock.study.corrections import holm
from interlock.study.findings import Contrast, Estimate, Interaction
from interlock.study.layout import off_scale
from interlock.study.noise import EXACT, Floor
from interlock.study.spec import Metric

BETTER, WORSE, NOTHING = "better", "worse", "no difference shown"
INERT, TOO_FEW = "inert", "too few pairs"
EXACTLY = "Exact for this workload: in virtual time equal runs are equal."
EXACTLY_IF = (
    "Exact for this workload if the terms that are not estimated are none: not every combination "
    "of levels ran."
)


@dataclass(frozen=True)
class Judged:
    """The comparisons of a study with their verdicts, metric by metric."""

    contrasts: tuple[Contrast, ...]
    effects: tuple[Contrast, ...]
    interactions: tuple[Interaction, ...]


def judge(found: Sequence[MetricComparisons], confidence: float) -> Judged:
    """Correct over all cells, levels and metrics of the study, and judge each.

    One family, so that a study of equal compositions names any winner with a probability of at
    most 1 - confidence. Comparisons of an inert arm are in it: what acted is known only afterwards.
    An effect that is measured by a contrast's very numbers (one factor at a time) counts once.
    Interactions are a family of their own.
    """
    decided = _corrected([(m, c) for m in found for c in (*m.contrasts, *m.effects)])
    others = _corrected([(m, c) for m in found for c in m.interactions])

    def verdict(of: MetricComparisons, one: Compared) -> Contrast:
        p = decided.get(_key(of, one), 1.0)
        return _contrast(of.layout.metric, of.floor, one, p, confidence)

    def effect(of: MetricComparisons, one: Compared) -> Contrast:
        found = verdict(of, one)
        assumes = of.model is not None and not of.model.complete and found.reason == EXACTLY
        return replace(found, reason=EXACTLY_IF) if assumes else found

    return Judged(
        contrasts=tuple(verdict(m, c) for m in found for c in m.contrasts),
        effects=tuple(effect(m, c) for m in found for c in m.effects),
        interactions=tuple(
            Interaction(
                m.layout.metric.key, c.what, c.against,
                _estimate(m.layout.metric, c, others.get(_key(m, c), 1.0)),
            )
            for m in found
            for c in m.interactions
            if c.measured
        ),
    )  # fmt: skip


Key = tuple[str, float, float, float]


def _key(of: MetricComparisons, one: Compared) -> Key:
    measured = one.measured or Measured(0.0, 0.0, 0.0, 1.0)
    rounded = (round(x, 12) for x in (measured.value, measured.low, measured.high))
    return (of.layout.metric.key, *rounded)  # type: ignore[return-value]  # three of them


def _corrected(found: Sequence[tuple[MetricComparisons, Compared]]) -> dict[Key, float]:
    p = {_key(of, one): one.measured.p for of, one in found if one.measured}
    return dict(zip(p, holm(list(p.values())), strict=True))


def _estimate(metric: Metric, one: Compared, p_adjusted: float) -> Estimate:
    nan = math.nan
    measured = one.measured or Measured(nan, nan, nan, 1.0)
    ends = [off_scale(metric, x) for x in (measured.value, measured.low, measured.high)]
    return Estimate(ends[0], ends[1], ends[2], measured.p, p_adjusted, one.num_pairs)


def _contrast(
    metric: Metric, floor: Floor, one: Compared, p_adjusted: float, confidence: float
) -> Contrast:
    estimate = _estimate(metric, one, p_adjusted)
    verdict, reason = _verdict(metric, floor, one, estimate, confidence)
    return Contrast(metric.key, one.what, one.against, estimate, verdict, reason)


def _verdict(
    metric: Metric, floor: Floor, one: Compared, estimate: Estimate, confidence: float
) -> tuple[str, str]:
    if one.measured is None:
        if one.num_pairs >= LEAST_PAIRS:
            return TOO_FEW, "No cell was run twice, so nothing is known of the noise."
        runs = f"{one.num_pairs} pair{'s' * (one.num_pairs != 1)} with {one.against}"
        return TOO_FEW, f"{runs}; a difference needs {LEAST_PAIRS}."
    if one.idle:
        return INERT, f"{' and '.join(one.idle)} differed and never acted: nothing was measured."
    if floor is EXACT:
        if one.measured.value == 0:
            return NOTHING, "The two are equal."
        return _direction(metric, one.measured), EXACTLY
    if not math.isfinite(floor.half_width):
        return TOO_FEW, "The noise floor is unknown: what was run twice are too few pairs."
    alpha = 1 - confidence
    if estimate.p > alpha:
        return NOTHING, f"The {confidence:.0%} interval has zero."
    if estimate.p_adjusted > alpha:
        return NOTHING, (
            f"p = {estimate.p:.2g}, but {estimate.p_adjusted:.2g} over all comparisons of the "
            "study."
        )
    if abs(one.measured.value) <= floor.half_width:
        inside = shown(metric, off_scale(metric, floor.half_width))
        return NOTHING, f"Inside the noise floor: equal compositions differ by up to {inside}."
    return _direction(metric, one.measured), (
        f"p = {estimate.p_adjusted:.2g} over all comparisons of the study, beyond the noise floor "
        f"of {shown(metric, off_scale(metric, floor.half_width))}."
    )


def _direction(metric: Metric, measured: Measured) -> str:
    return BETTER if (measured.value < 0) == (metric.better == "lower") else WORSE


def shown(metric: Metric, value: float) -> str:
    """A difference in words: a share in per cent for the ratio scale."""
    return f"{value:.3g}" if metric.scale == "difference" else f"{value:.2%}"
