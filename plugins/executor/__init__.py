"""Built-in executors: torch on a real model, also in CUDA graphs; fixed costs in virtual time."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from interlock.core.capabilities import (
    Capability,
    CapturesGraphs,
    CarriesTokens,
    Composition,
    DrivesVirtualTime,
    EditsLogits,
    MakesText,
    MovesPages,
    PricesMoves,
    RatesDrafts,
    Requirement,
    ReturnsLogprobs,
    RunsModel,
    RunsOnRanks,
    SimulatesDrafts,
    SplitsSums,
    TakesBlockIds,
    needs,
)
from interlock.core.closest import unknown_name
from interlock.core.component import Component
from interlock.core.errors import ConfigError
from interlock.core.model import ModelDescription
from interlock.core.options import option

MOST_MS = 1e9
"""Eleven days a step: longer ones add up to times that are no numbers."""


CAPTURE = ("lazy", "start")
"""When executor=cuda_graph captures."""


@dataclass(frozen=True)
class TorchConfig:
    """Run the model with torch, step by step, on the wall clock."""

    name: str = "torch"


@dataclass(frozen=True)
class GraphConfig:
    """Run the model with torch; capture decode and verification steps in CUDA graphs.

    Such steps are padded to one of few shapes, whose pass is captured once and then replayed.
    Others run as with executor=torch. On a CPU the same steps are padded and run eagerly.
    """

    name: str = "cuda_graph"
    rows: tuple[int, ...] = option(
        (),
        "numbers of requests that steps are padded to, rising; steps with more run eagerly "
        "(none: 1, 2, 4, every multiple of 8 and scheduler.max_requests)",
    )
    capture: str = option(
        CAPTURE[0], "lazy: a shape is captured when it first occurs; start: all before any request"
    )

    def __post_init__(self) -> None:
        if self.capture not in CAPTURE:
            raise ConfigError(unknown_name("capture", self.capture, CAPTURE))
        if list(self.rows) != sorted({n for n in self.rows if n > 0}):
            raise ValueError(f"rows={list(self.rows)} are not rising numbers of at least 1")


@dataclass(frozen=True)
class FixedConfig:
    """Price each step by a fixed formula on a virtual clock; no model runs.

    A step lasts step_ms + token_ms * tokens + draft_ms * drafted tokens. Tokens are hashed from the
    request's seed and position; each draft is accepted with probability `acceptance`. Copies to and
    from cache/tiers=priced move kv_bytes_per_token for each token, beside the steps.

    jitter, wander and drift make time as unsteady as a machine's, to test what analyses of studies
    make of it. They depend on the run's seed and on `noise_run`, so that two runs of one
    composition differ where their `noise_run` does.
    """

    name: str = "fixed"
    step_ms: float = option(10.0, "milliseconds per step, whatever is in it")
    token_ms: float = option(0.05, "milliseconds per token the target runs")
    draft_ms: float = option(1.0, "milliseconds per candidate that the longest draft proposes")
    acceptance: float = option(
        0.7, "probability that a candidate is accepted after the ones before"
    )
    kv_bytes_per_token: int = option(131072, "bytes of a token's rows in the cache, in all layers")
    jitter: float = option(0.0, "for tests of analyses: sigma of a lognormal factor of each step")
    wander: float = option(0.0, "for tests of analyses: sigma of a lognormal factor of the run")
    drift: float = option(0.0, "for tests of analyses: log of the factor that noise_run adds by 1")
    noise_run: int = option(0, "which run of a study this is; jitter, wander and drift follow it")

    def __post_init__(self) -> None:
        for key in ("step_ms", "token_ms", "draft_ms"):
            if not 0 <= getattr(self, key) <= MOST_MS:
                raise ValueError(f"{key}={getattr(self, key)} is not from 0 to {MOST_MS:g}")
        if not 1 <= self.kv_bytes_per_token <= 1 << 40:
            raise ValueError(f"kv_bytes_per_token={self.kv_bytes_per_token} is not from 1 to 2**40")
        for key in ("jitter", "wander"):
            if not 0 <= getattr(self, key) <= 1:
                raise ValueError(f"{key}={getattr(self, key)} is not a number from 0 to 1")
        if not 0 <= self.noise_run < 1 << 32:
            raise ValueError(f"noise_run={self.noise_run} is not from 0 to 2**32 - 1")
        if not abs(self.drift) * max(self.noise_run, 1) <= 1:
            raise ValueError(
                f"drift={self.drift} over noise_run={self.noise_run} is more than a factor e"
            )
        if not 0 <= self.acceptance <= 1:
            raise ValueError(f"acceptance={self.acceptance} is not a number from 0 to 1")
        if self.step_ms == 0 and self.token_ms == 0:
            raise ValueError("step_ms=0 and token_ms=0: time would stand still; set one above 0")


def components() -> list[Component]:
    """The executors."""
    return [
        Component(
            seam="executor",
            name="torch",
            config=TorchConfig,
            build="interlock.plugins.executor.torch_executor:build",
            summary="runs the model with torch",
            provides=_torch_provides,
            requires=_torch_requires,
        ),
        Component(
            seam="executor",
            name="cuda_graph",
            config=GraphConfig,
            build="interlock.plugins.executor.graph_executor:build",
            summary="as torch, decode and verification steps captured in CUDA graphs",
            provides=_torch_provides,
            requires=_graph_requires,
        ),
        Component(
            seam="executor",
            name="fixed",
            config=FixedConfig,
            build="interlock.plugins.executor.fixed:build",
            summary="a fixed cost per step and token in virtual time, no model",
            provides=_fixed_provides,
        ),
    ]


def _torch_provides(_config: Any, _model: ModelDescription | None) -> Iterable[Capability]:
    return (
        RunsModel(), RunsOnRanks(), ReturnsLogprobs(), EditsLogits(), MakesText(), MovesPages(),
    )  # fmt: skip


def _torch_requires(config: Any, _model: ModelDescription | None) -> Iterable[Requirement]:
    reason = f"executor={config.name} runs a model on token ids, but the workload carries none"
    return (needs(CarriesTokens(), reason),)


def _graph_requires(config: GraphConfig, model: ModelDescription | None) -> Iterable[Requirement]:
    def rows(composition: Composition) -> str | None:
        most = composition.settings.get("scheduler.max_requests")
        if most is None or all(count <= most for count in config.rows):
            return None
        return (
            f"executor.rows={list(config.rows)}: no step has more rows than "
            f"scheduler.max_requests={most}"
        )

    return (*_torch_requires(config, model), rows, _can_capture)


def _can_capture(composition: Composition) -> str | None:
    """What runs on CUDA has launches that do not depend on what a step holds."""
    if not composition.device.startswith("cuda"):
        return None
    if composition.has(SplitsSums()):
        chosen = composition.chosen["parallel"][0]
        return f"executor=cuda_graph captures no sums over ranks, which parallel={chosen} needs"
    if composition.settings.get("numerics") == "batch_invariant":
        return (
            "executor=cuda_graph: with numerics=batch_invariant the number of launches grows with "
            "the longest context, so that no graph fits the next step; set numerics=fast"
        )
    if not composition.has(CapturesGraphs()):
        chosen = composition.chosen["attention"][0]
        return (
            f"executor=cuda_graph: attention={chosen} as configured has no plans that can be "
            "captured on CUDA (Triton kernels have)"
        )
    return None


def _fixed_provides(_config: FixedConfig, _model: ModelDescription | None) -> Iterable[Capability]:
    return (
        SimulatesDrafts(), RatesDrafts(), DrivesVirtualTime(), TakesBlockIds(), PricesMoves(),
    )  # fmt: skip
