"""What a study shows: a pure function from its observations to its findings."""

import math
from collections.abc import Collection, Sequence

import numpy as np

from interlock.study.comparisons import Comparing, MetricComparisons
from interlock.study.findings import Drift, Findings, NoiseFloor
from interlock.study.layout import lay_out, off_scale
from interlock.study.noise import drift_of
from interlock.study.notes import notes
from interlock.study.pairs import Activity, baseline_of, references
from interlock.study.spec import Cell, Metric, Observation, Refusal, Study, observed
from interlock.study.summaries import summaries
from interlock.study.verdicts import judge, shown


def analyse(
    study: Study,
    cells: Sequence[Cell],
    observations: Sequence[Observation],
    refusals: Sequence[Refusal] = (),
    lossy: Collection[str] = (),
) -> Findings:
    """The findings of a study, finished or not; the same input gives the same findings.

    `cells` are those that were to run, `lossy` the ids of those whose output may differ from the
    baseline's. See docs/studies.md for what is decided how.
    """
    activity = Activity(observations)
    deciding = _deciding(study, observations)
    compared_with = references(study, cells, deciding)
    exact = all(one.exact for one in observed(observations))
    comparing = Comparing(study, cells, compared_with, activity, exact)
    ids = [cell.id for cell in cells]
    layouts = [lay_out(metric, ids, deciding) for metric in study.metrics]
    found = [
        comparing.of(layout, np.random.default_rng((study.seed, place)))
        for place, layout in enumerate(layouts)
    ]
    judged = judge(found, study.confidence)
    drifts = tuple(_drifts(found))
    return Findings(
        baseline=baseline_of(study, cells),
        confidence=study.confidence,
        cells=summaries(study, cells, observations, activity),
        contrasts=judged.contrasts,
        effects=judged.effects,
        interactions=judged.interactions,
        noise=tuple(_noise(one) for one in found),
        drift=drifts,
        notes=notes(study, cells, observations, refusals, compared_with, found, drifts, lossy),
    )


def _deciding(study: Study, observations: Sequence[Observation]) -> Sequence[Observation]:
    """The runs that differences are taken of.

    A search tries one cell after the other, and its best are the best of its own noise as well.
    So only what it ran again after it decides, in shuffled blocks of their own.
    """
    if study.design != "search":
        return observations
    return [one for one in observations if one.repeat >= study.repeats]


def _noise(found: MetricComparisons) -> NoiseFloor:
    metric, floor = found.layout.metric, found.floor
    if not math.isfinite(floor.half_width):
        return NoiseFloor(metric.key, math.nan, floor.num_pairs, floor.source)
    one_pair = shown(metric, off_scale(metric, floor.one_pair))
    source = f"from {floor.source}; a single pair of equal runs differs by up to {one_pair}"
    return NoiseFloor(
        metric.key, off_scale(metric, floor.half_width), floor.num_pairs, source
    )  # fmt: skip


def _drifts(found: Sequence[MetricComparisons]) -> list[Drift]:
    slopes = [(one.layout.metric, drift_of(one.layout)) for one in found]
    return [_drift(metric, *slope) for metric, slope in slopes if slope is not None]


def _drift(metric: Metric, slope: float, p: float) -> Drift:
    return Drift(metric.key, off_scale(metric, slope), p)
