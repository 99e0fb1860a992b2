"""The configuration of an engine as plain dataclasses: every option, its default and its help.

What values may be is checked where they are read (`conf/check_settings.py`).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from interlock.core.options import option, plain
from interlock.core.request import SamplingParams

DTYPES = ("auto", "float64", "float32", "bfloat16", "float16")
MAX_PAGE_SIZE = 512
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


@dataclass(frozen=True)
class SchedulerConfig:
    """What every scheduler is bound by. Its four policies are choices of seams."""

    budget_tokens: int = option(2048, "tokens that the model runs in one step, at most")
    max_requests: int = option(64, "requests that run at the same time, at most")


@dataclass(frozen=True)
class ReplayConfig:
    """How a trace of block ids is replayed."""

    blocks: str = option(
        "engine",
        "engine: as served, pages in a tree; ids: each id is one page of one pool and only "
        "cache/eviction acts, as papers count hits",
    )


@dataclass(frozen=True)
class EngineConfig:
    """Everything that was chosen for a run, before any of it is built."""

    model: str = option(AUTO, "a model's name, directory or file; auto: a shipped one")
    dtype: str = option(AUTO, f"{', '.join(DTYPES)} (auto: float32 on a CPU, else the model's)")
    numerics: str = option(
        "fast",
        "fast, or batch_invariant: a row's bits depend on its tokens alone, whatever its batch, "
        "chunks, cache hits and drafts; slower",
    )
    weights: str = option(
        AUTO,
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
