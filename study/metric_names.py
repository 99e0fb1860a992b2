"""The keys of summary.json that a study may name, known before anything runs."""

from collections.abc import Iterator, Mapping
from typing import Any

from interlock.core.closest import unknown_name
from interlock.core.ledger import StepLedger
from interlock.driver.metrics import summarize
from interlock.driver.speculation import StepTimesAccount

SLOTS = ("samples", "tokens", "reserved", "internal", "external", "cached", "free", "waste",
         "pages_per_run")  # fmt: skip
"""What `driver/kv_memory.py` says of the cache's slots."""
REPLAYED = ("requests", "blocks", "hits", "hit_rate", "prefix_hits", "prefix_hit_rate",
            "evicted_blocks", "capacity_blocks")  # fmt: skip
"""What `driver/block_replay.py` says of a replay of block ids."""
OPEN = ("prefix_cache_hit_rate_by_turn", "stored_error")
"""Mappings whose keys only a run knows: turns of conversations, planes of the cache."""


def metric_problem(key: str, replay: bool) -> str | None:
    """What is wrong with a metric's key. `replay`: of runs that replay block ids."""
    known = REPLAYED if replay else run_figures()
    group, dot, rest = key.partition(".")
    if key in known or (not replay and group in OPEN and dot and rest):
        return None
    return unknown_name("metric", key, known)


def run_figures() -> tuple[str, ...]:
    """The numbers that every run's summary has, by their dotted keys; in some runs null."""
    return (
        *_numbers(summarize([], StepLedger())),
        *_numbers(StepTimesAccount().summary(None), "speculation."),
        *(f"kv_memory.{name}" for name in SLOTS),
    )


def _numbers(summary: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    for key, value in summary.items():
        if isinstance(value, Mapping):
            yield from _numbers(value, f"{prefix}{key}.")
        elif value is None or (isinstance(value, int | float) and not isinstance(value, bool)):
            yield prefix + key
