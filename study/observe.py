"""From a run's folder to an Observation."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from interlock.driver.run_folder import RUN, SUMMARY, read_requests
from interlock.study.job import FAILED, MACHINE, QUALITY, STARTED
from interlock.study.order import Place
from interlock.study.read_json import read_json
from interlock.study.spec import Metric, Observation
from interlock.study.what_served import acted, chosen


def observe(
    folder: Path, place: Place, metrics: Sequence[Metric], number: int, study_began_s: float
) -> Observation:
    """What the run in this folder gave; one that left no manifest has failed.

    `number` is its place in the order in which runs really happened; the study began at
    `study_began_s`, on the machine's clock.
    """
    machine = read_json(folder / MACHINE)
    started_s = max(0.0, machine.pop(STARTED, study_began_s) - study_began_s)
    about: dict[str, Any] = {
        "cell": place.cell.id, "repeat": place.repeat, "replica": place.replica, "place": number,
        "started_s": started_s, "machine": machine,
    }  # fmt: skip
    failed = read_json(folder / FAILED)
    manifest = read_json(folder / RUN)
    if failed or not manifest:
        problem = str(failed.get("problem", "it left no result"))
        return Observation(**about, values={}, failure=problem)
    summary = read_json(folder / SUMMARY)
    return Observation(
        **about,
        values={metric.key: value_of(summary, metric.key) for metric in metrics},
        workload_sha256=manifest.get("workload_sha256", ""),
        inert=tuple(manifest.get("inert", ())),
        chosen=chosen(manifest),
        acted=acted(manifest),
        quality=read_json(folder / QUALITY),
        exact=manifest.get("exact_times") is True,
    )


def value_of(summary: Mapping[str, Any], key: str) -> float | None:
    """The figure at a dotted key; None where the run has none, or no number."""
    value: Any = summary
    for part in key.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_number else None


def equal_share(ours: Path, baseline: Path) -> float | None:
    """The share of output tokens before the first that differs from the baseline's, by request.

    0 to 1, over all samples of all requests of the longer outputs; None where there are no tokens,
    or time is virtual and no model ran.
    """
    if read_json(ours / RUN).get("clock") == "virtual":
        return None
    mine, theirs = _outputs(ours), _outputs(baseline)
    total = same = 0
    for key in mine.keys() | theirs.keys():
        one, other = mine.get(key, []), theirs.get(key, [])
        total += max(len(one), len(other))
        same += _common(one, other)
    return same / total if total else None


def _common(one: Sequence[int], other: Sequence[int]) -> int:
    for place, (a, b) in enumerate(zip(one, other, strict=False)):
        if a != b:
            return place
    return min(len(one), len(other))


def _outputs(folder: Path) -> dict[tuple[int, int], list[int]]:
    return {
        (line["index"], line["sample"]): line["output_token_ids"] for line in read_requests(folder)
    }


def began_s(folder: Path) -> float:
    """When the run in this folder began, seconds since the epoch; infinite where it did not."""
    return float(read_json(folder / MACHINE).get(STARTED, "inf"))
