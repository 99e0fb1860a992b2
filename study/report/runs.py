"""What plots need from the folders of runs: latencies, work of steps, occupancy, acceptance."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from interlock.core.errors import RunFolderError
from interlock.core.request import RequestRecord
from interlock.driver.latency import Floats, latencies, pooled
from interlock.driver.run_folder import SUMMARY, read_requests, read_run
from interlock.study.read_json import read_json

KINDS = ("prefill", "decode", "verify")
LATENCIES = ("ttft", "tpot", "itl", "e2el")
MOST_POINTS = 160
"""Of a timeline or a distribution: more cannot be seen."""


@dataclass(frozen=True)
class Timeline:
    """Steps in order; times in seconds on the run's clock."""

    start_s: float
    """When the first step began."""
    end_s: Floats
    tokens: dict[str, Floats]
    """Of each of `KINDS`, tokens a step."""


@dataclass(frozen=True)
class RequestTimes:
    """Of one run's requests."""

    ms: dict[str, Floats]
    """Of those completed: ttft, tpot, itl and e2el, milliseconds, in no order."""
    first_token_s: dict[int, float | None]
    """On the run's clock, by request."""


def request_times(folder: Path) -> RequestTimes:
    """What requests.jsonl of a run says; nothing where it cannot be read."""
    found: dict[str, list[Floats]] = {key: [] for key in LATENCIES}
    first: dict[int, float | None] = {}
    for line in _requests(folder):
        first[line.get("index", -1)] = line.get("first_token_s")
        if line.get("status") != "finished" or line.get("dropped") or "chunk_times_s" not in line:
            continue
        record = RequestRecord(
            index=line["index"],
            arrival_s=line["arrival_s"],
            finished_s=line["finished_s"],
            chunk_times_s=line["chunk_times_s"],
            chunk_sizes=line["chunk_sizes"],
        )
        one = latencies(record)
        for key, value in (("ttft", one.ttft_s), ("tpot", one.tpot_s), ("e2el", one.e2el_s)):
            if value is not None:
                found[key].append(np.array([value]))
        found["itl"].append(one.itl_s)
    return RequestTimes({key: pooled(parts) * 1e3 for key, parts in found.items()}, first)


def latencies_ms(repeats: Iterable[RequestTimes]) -> dict[str, Floats]:
    """All repeats' latencies together, sorted."""
    together = [one.ms for one in repeats]
    every = {key: pooled(ms[key] for ms in together) for key in LATENCIES}
    return {key: np.sort(times[np.isfinite(times)]) for key, times in every.items()}


def timeline(folder: Path, first_token_s: Mapping[int, float | None]) -> Timeline | None:
    """What the steps of a run computed; None where it has no readable steps.

    Tokens of a row with candidates are verified; a row of one token, once its request has given
    one, decodes; all else computes prompts, or again what was preempted.
    """
    try:
        steps = read_run(folder).steps
    except RunFolderError:
        return None
    if not steps:
        return None
    tokens = {kind: np.zeros(len(steps)) for kind in KINDS}
    for place, step in enumerate(steps):
        for index, number, drafts in step.rows:
            begun = first_token_s.get(index)
            if number > 1 + drafts or (begun is not None and step.end_s <= begun):
                kind = "prefill"
            else:
                kind = "verify" if drafts else "decode"
            tokens[kind][place] += number
    return Timeline(steps[0].now_s, np.array([step.end_s for step in steps]), tokens)


def occupancy(folder: Path) -> tuple[Floats, Floats] | None:
    """Seconds, and the share of the cache's pages that requests hold; None without a figure."""
    kept = (read_json(folder / SUMMARY).get("kv_memory") or {}).get("timeline") or {}
    if not kept.get("now_s"):
        return None
    now_s = np.array(kept["now_s"], dtype=np.float64)
    held = np.array(kept["held"], dtype=np.float64)
    known = np.isfinite(now_s) & np.isfinite(held)
    return (now_s[known], held[known]) if known.any() else None


def acceptance(folders: Iterable[Path]) -> list[float]:
    """The share of rounds that accepted the candidate at each position, a mean over runs."""
    key = "spec_decode_per_position_acceptance_rates"
    rows = [row for row in (read_json(folder / SUMMARY).get(key) for folder in folders) if row]
    longest = max(map(len, rows), default=0)
    return [
        float(np.mean([(row[place] or 0.0) if place < len(row) else 0.0 for row in rows]))
        for place in range(longest)
    ]


def binned(end_s: Floats, values: Floats, most: int = MOST_POINTS) -> tuple[Floats, Floats]:
    """Means over at most `most` equal spans of time, and their ends; empty spans are left out."""
    if len(end_s) <= most:
        return end_s, values
    edges = np.linspace(end_s[0], end_s[-1], most + 1)[1:-1]
    at = np.searchsorted(edges, end_s)
    count = np.bincount(at, minlength=most)
    kept = count > 0
    sums, times = np.bincount(at, values, most), np.bincount(at, end_s, most)
    return times[kept] / count[kept], sums[kept] / count[kept]


def _requests(folder: Path) -> list[dict[str, Any]]:
    try:
        return read_requests(folder)
    except RunFolderError:
        return []
