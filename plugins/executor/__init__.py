"""Built-in executors: torch on a real model, and fixed costs in virtual time."""

from collections.abc import Iterable
from dataclasses import dataclass

from interlock.core.capabilities import (
    Capability,
    CarriesTokens,
    DrivesVirtualTime,
    EditsLogits,
    MakesText,
    Requirement,
    ReturnsLogprobs,
    RunsModel,
    RunsOnRanks,
    SimulatesDrafts,
    TakesBlockIds,
    needs,
)
from interlock.core.component import Component
from interlock.core.model import ModelDescription
from interlock.core.options import option

MOST_MS = 1e9
"""Eleven days a step: longer ones add up to times that are no numbers."""


@dataclass(frozen=True)
class TorchConfig:
    """Run the model with torch, step by step, on the wall clock."""

    name: str = "torch"


@dataclass(frozen=True)
class FixedConfig:
    """Price each step by a fixed formula on a virtual clock; no model runs.

    A step lasts step_ms + token_ms * tokens + draft_ms * drafted tokens. Tokens are hashed from the
    request's seed and position; each draft is accepted with probability `acceptance`.
    """

    name: str = "fixed"
    step_ms: float = option(10.0, "milliseconds per step, whatever is in it")
    token_ms: float = option(0.05, "milliseconds per token the target runs")
    draft_ms: float = option(1.0, "milliseconds per candidate that the longest draft proposes")
    acceptance: float = option(
        0.7, "probability that a candidate is accepted after the ones before"
    )

    def __post_init__(self) -> None:
        for key in ("step_ms", "token_ms", "draft_ms"):
            if not 0 <= getattr(self, key) <= MOST_MS:
                raise ValueError(f"{key}={getattr(self, key)} is not from 0 to {MOST_MS:g}")
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
            name="fixed",
            config=FixedConfig,
            build="interlock.plugins.executor.fixed:build",
            summary="a fixed cost per step and token in virtual time, no model",
            provides=_fixed_provides,
        ),
    ]


def _torch_provides(_config: TorchConfig, _model: ModelDescription | None) -> Iterable[Capability]:
    return (RunsModel(), RunsOnRanks(), ReturnsLogprobs(), EditsLogits(), MakesText())


def _torch_requires(_config: TorchConfig, _model: ModelDescription | None) -> Iterable[Requirement]:
    reason = "executor=torch runs a model on token ids, but the workload carries none"
    return (needs(CarriesTokens(), reason),)


def _fixed_provides(_config: FixedConfig, _model: ModelDescription | None) -> Iterable[Capability]:
    return (SimulatesDrafts(), DrivesVirtualTime(), TakesBlockIds())
