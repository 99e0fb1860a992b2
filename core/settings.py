"""The configuration of an engine as plain dataclasses: every option, its default and its help."""

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from interlock.core.options import option, plain
from interlock.core.request import SamplingParams

DTYPES = ("auto", "float64", "float32", "bfloat16", "float16")
NUMERICS = ("fast", "batch_invariant")
WEIGHTS = ("auto", "int8", "int4")
CACHE_DTYPES = ("auto", "fp8")
REPLAYS = ("engine", "ids")
CACHE_WRITES = ("through", "back")
MAX_PAGE_SIZE = 512
MAX_THREADS = 1024
"""Torch ends the process when the system gives it fewer threads than it was promised."""
AUTO = "auto"
"""The choice that the resolver makes: `attention=auto`, `model=auto`."""


@dataclass(frozen=True)
class Choice:
    """One seam's choice: the component's name and its options (None for `auto`)."""

    name: str
    config: Any = None


@dataclass(frozen=True)
class LimitsConfig:
    """Latency limits a request must meet to count in goodput; null: no limit."""

    ttft_ms: float | None = option(None, "time to first token, milliseconds")
    tpot_ms: float | None = option(None, "time per output token after the first, milliseconds")
    e2el_ms: float | None = option(None, "end-to-end latency, milliseconds")

    def problems(self) -> Iterator[str]:
        """Every limit that is not a finite number above 0."""
        for name, value in vars(self).items():
            if value is not None and not 0 < value < math.inf:
                yield f"limits.{name}={value} is not a finite number above 0, or null"


@dataclass(frozen=True)
class CacheConfig:
    """The paged cache. Which allocator, index and eviction policy it uses are choices of seams."""

    page_size: int = option(16, f"tokens in a page, 1 to {MAX_PAGE_SIZE}")
    num_pages: int | None = option(None, "pages of the pool; null: what the device's memory holds")
    dtype: str = option(
        "auto",
        "of cached rows. auto: the run's dtype; fp8: e4m3 with scales, half of 16 bits and lossy "
        "(each number to 1 part in 16 at worst; the report says what it measured)",
    )
    share_tenants: bool = option(False, "let tenants reuse each other's cached prefixes")
    write: str = option(
        "through", "to cache/tiers. through: pages as they are computed; back: as they are evicted"
    )
    load_timeout_s: float = option(
        1.0, "seconds after which a request computes what it waits for from a tier"
    )

    def problems(self) -> Iterator[str]:
        """Every value out of range."""
        if not 1 <= self.page_size <= MAX_PAGE_SIZE:
            yield f"cache.page_size={self.page_size} is not from 1 to {MAX_PAGE_SIZE}"
        if self.num_pages is not None and self.num_pages < 1:
            yield f"cache.num_pages={self.num_pages} is not at least 1, or null"
        if self.write not in CACHE_WRITES:
            yield f"cache.write={self.write!r} is not one of {', '.join(CACHE_WRITES)}"
        if not 0 < self.load_timeout_s <= 3600:
            yield f"cache.load_timeout_s={self.load_timeout_s} is not above 0 and up to 3600"
        if self.dtype not in CACHE_DTYPES:
            yield f"cache.dtype={self.dtype!r} is not one of {', '.join(CACHE_DTYPES)}"


@dataclass(frozen=True)
class SchedulerConfig:
    """What every scheduler is bound by. Its four policies are choices of seams."""

    budget_tokens: int = option(2048, "tokens that the model runs in one step, at most")
    max_requests: int = option(64, "requests that run at the same time, at most")

    def problems(self) -> Iterator[str]:
        """Every value out of range."""
        for name, value in vars(self).items():
            if value < 1:
                yield f"scheduler.{name}={value} is not at least 1"


@dataclass(frozen=True)
class ReplayConfig:
    """How a trace of block ids is replayed."""

    blocks: str = option(
        REPLAYS[0],
        "engine: as served, pages in a tree; ids: each id is one page of one pool and only "
        "cache/eviction acts, as papers count hits",
    )

    def problems(self) -> Iterator[str]:
        """A value that is none of those allowed."""
        if self.blocks not in REPLAYS:
            yield f"replay.blocks={self.blocks!r} is not one of {', '.join(REPLAYS)}"


@dataclass(frozen=True)
class EngineConfig:
    """Everything that was chosen for a run, before any of it is built."""

    model: str = option(AUTO, "a model's name, directory or file; auto: a shipped one")
    dtype: str = option(AUTO, f"{', '.join(DTYPES)} (auto: float32 on a CPU, else the model's)")
    numerics: str = option(
        NUMERICS[0],
        "fast, or batch_invariant: a row's bits depend on its tokens alone, whatever its batch, "
        "chunks, cache hits and drafts; slower",
    )
    weights: str = option(
        WEIGHTS[0],
        "of layers' linear projections. auto: in the run's dtype; int8 (a scale an output), int4 "
        "(one for 32 inputs): less memory, lossy. Embedding, head, norms and routers stay",
    )
    device: str = option("cpu", "cpu, cuda or cuda:N")
    seed: int = option(0, "every random choice of the run derives from it")
    threads: int | None = option(None, "CPU threads of torch; null: torch's default")
    adapters: tuple[str, ...] = option(
        (),
        "LoRA adapters as PEFT saves them: [DIR, ...] or [NAME:DIR, ...]; requests name one",
    )
    max_model_len: int | None = option(None, "longest request in tokens; null: the model's limit")
    rerun: str | None = option(None, "run directory whose recorded workload is run again")
    progress: bool = option(True, "show a progress line")
    strict_plugins: bool = option(False, "a plugin that cannot be loaded stops the start")
    sampling: SamplingParams = option(SamplingParams, "defaults of requests that do not say")
    limits: LimitsConfig = option(LimitsConfig, "latency limits behind goodput")
    cache: CacheConfig = option(CacheConfig, "the paged cache")
    scheduler: SchedulerConfig = option(SchedulerConfig, "bounds of every scheduler")
    replay: ReplayConfig = option(ReplayConfig, "how a trace of block ids is replayed")
    choices: Mapping[str, Choice] = field(default_factory=dict, metadata={"option": False})
    """Seam key -> the component chosen for it."""

    def problems(self) -> list[str]:
        """Every setting that is out of range, each named with its value and what is allowed."""
        found = [f"sampling.{problem}" for problem in self.sampling.problems()]
        found += [*self.limits.problems(), *self.cache.problems(), *self.scheduler.problems()]
        found += self.replay.problems()
        for name, values in (("dtype", DTYPES), ("numerics", NUMERICS), ("weights", WEIGHTS)):
            if (value := getattr(self, name)) not in values:
                found.append(f"{name}={value!r} is not one of {', '.join(values)}")
        if not re.fullmatch(r"cpu|cuda(:\d+)?", self.device):
            found.append(f"device={self.device!r} is not cpu, cuda or cuda:N")
        if not 0 <= self.seed < 2**63:
            found.append(f"seed={self.seed} is not from 0 to 2**63 - 1")
        if self.threads is not None and not 1 <= self.threads <= MAX_THREADS:
            found.append(f"threads={self.threads} is not from 1 to {MAX_THREADS}, or null")
        if self.max_model_len is not None and self.max_model_len < 1:
            found.append(f"max_model_len={self.max_model_len} is not at least 1, or null")
        return found


def flat_settings(config: EngineConfig) -> dict[str, Any]:
    """Dotted key -> value of every setting that is not a component's option."""
    flat: dict[str, Any] = {}

    def walk(values: Mapping[str, Any], prefix: str) -> None:
        for key, value in values.items():
            if isinstance(value, Mapping):
                walk(value, f"{prefix}{key}.")
            else:
                flat[f"{prefix}{key}"] = value

    walk(plain(config), "")
    return flat
