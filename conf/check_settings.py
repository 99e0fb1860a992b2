"""What settings may be: every value out of range, named with what is allowed."""

import math
import re
from collections.abc import Iterator, Sequence
from typing import Any

from interlock.conf.check_sampling import sampling_problems
from interlock.core.settings import (
    DTYPES,
    MAX_PAGE_SIZE,
    CacheConfig,
    EngineConfig,
    LimitsConfig,
    SchedulerConfig,
)

NUMERICS = ("fast", "batch_invariant")
WEIGHTS = ("auto", "int8", "int4")
CACHE_DTYPES = ("auto", "fp8")
CACHE_WRITES = ("through", "back")
REPLAYS = ("engine", "ids")
MAX_THREADS = 1024
"""Torch ends the process when the system gives it fewer threads than it was promised."""


def problems_of(config: EngineConfig) -> Iterator[str]:
    """Everything that is wrong with settings; components judge their own options."""
    yield from (f"sampling.{problem}" for problem in sampling_problems(config.sampling))
    yield from _of_limits(config.limits)
    yield from _of_cache(config.cache)
    yield from _of_scheduler(config.scheduler)
    yield from _not_one_of("replay.blocks", config.replay.blocks, REPLAYS)
    yield from _not_one_of("dtype", config.dtype, DTYPES)
    yield from _not_one_of("numerics", config.numerics, NUMERICS)
    yield from _not_one_of("weights", config.weights, WEIGHTS)
    if not re.fullmatch(r"cpu|cuda(:\d+)?", config.device):
        yield f"device={config.device!r} is not cpu, cuda or cuda:N"
    if not 0 <= config.seed < 2**63:
        yield f"seed={config.seed} is not from 0 to 2**63 - 1"
    if config.threads is not None and not 1 <= config.threads <= MAX_THREADS:
        yield f"threads={config.threads} is not from 1 to {MAX_THREADS}, or null"
    if config.max_model_len is not None and config.max_model_len < 1:
        yield f"max_model_len={config.max_model_len} is not at least 1, or null"


def _of_limits(limits: LimitsConfig) -> Iterator[str]:
    for name, value in vars(limits).items():
        if value is not None and not 0 < value < math.inf:
            yield f"limits.{name}={value} is not a finite number above 0, or null"


def _of_cache(cache: CacheConfig) -> Iterator[str]:
    if not 1 <= cache.page_size <= MAX_PAGE_SIZE:
        yield f"cache.page_size={cache.page_size} is not from 1 to {MAX_PAGE_SIZE}"
    if cache.num_pages is not None and cache.num_pages < 1:
        yield f"cache.num_pages={cache.num_pages} is not at least 1, or null"
    yield from _not_one_of("cache.write", cache.write, CACHE_WRITES)
    if not 0 < cache.load_timeout_s <= 3600:
        yield f"cache.load_timeout_s={cache.load_timeout_s} is not above 0 and up to 3600"
    yield from _not_one_of("cache.dtype", cache.dtype, CACHE_DTYPES)


def _of_scheduler(scheduler: SchedulerConfig) -> Iterator[str]:
    for name, value in vars(scheduler).items():
        if value < 1:
            yield f"scheduler.{name}={value} is not at least 1"


def _not_one_of(setting: str, value: Any, allowed: Sequence[str]) -> Iterator[str]:
    if value not in allowed:
        yield f"{setting}={value!r} is not one of {', '.join(allowed)}"
