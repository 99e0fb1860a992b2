"""The metrics of a study file: keys of a run's summary, each checked before anything runs."""

from collections.abc import Mapping
from typing import Any

from interlock.study.metric_names import metric_problem
from interlock.study.metrics import DEFAULTS, REPLAY_DEFAULTS, metric_of
from interlock.study.spec import Metric


def read_metrics(
    tree: Mapping[str, Any], base: tuple[str, ...], problems: list[str]
) -> tuple[Metric, ...]:
    """Those that are stated, else the usual ones; `base`: the overrides of every cell."""
    replay = "replay.blocks=ids" in base
    stated = tree.get("metrics") or list(REPLAY_DEFAULTS if replay else DEFAULTS)
    found: list[Metric] = []
    for item in stated if isinstance(stated, list) else [stated]:
        metric = _metric(item, problems)
        if metric is None:
            continue
        found.append(metric)
        problem = metric_problem(metric.key, replay)
        problems += [f"metrics: {problem}"] if problem else []
    keys = [metric.key for metric in found]
    problems += [f"metrics: {key} stands twice" for key in set(keys) if keys.count(key) > 1]
    return tuple(found)


def _metric(item: Any, problems: list[str]) -> Metric | None:
    of = {"key": item} if isinstance(item, str) else item
    known = isinstance(of, dict) and not set(of) - {"key", "better", "scale"}
    if not known or not isinstance(of.get("key"), str):
        problems.append(f"metrics: {item!r} is no key of summary.json, nor {{key: ..., "
                        "better: lower or higher, scale: ratio or difference}")  # fmt: skip
        return None
    better, scale = of.get("better", ""), of.get("scale", "")
    if better not in ("", "lower", "higher") or scale not in ("", "ratio", "difference"):
        problems.append(f"metrics: {of['key']}: better is lower or higher, and scale is ratio "
                        f"or difference, not {better or scale!r}")  # fmt: skip
        return None
    return metric_of(of["key"].strip(), better, scale)
