"""Built-in workloads: a file of prompts, synthetic traffic, and replayed traces."""

from typing import Any

from interlock.core.capabilities import Capability, CarriesTokens
from interlock.core.component import Component
from interlock.plugins.frontend.configs import (
    ChatConfig,
    PromptsConfig,
    SyntheticConfig,
    TraceConfig,
    chat_requirements,
    prompts_requirements,
    synthetic_requirements,
    trace_requirements,
)


def _tokens(_config: Any, _model: Any) -> tuple[Capability, ...]:
    return (CarriesTokens(),)


def components() -> list[Component]:
    """The choices of the `workload` seam."""
    package = "interlock.plugins.frontend"
    return [
        Component(
            seam="workload",
            name="chat",
            config=ChatConfig,
            build=f"{package}.chat:build",
            summary="conversations whose turns wait for answers",
            provides=_tokens,
            requires=chat_requirements,
        ),
        Component(
            seam="workload",
            name="prompts",
            config=PromptsConfig,
            build=f"{package}.prompts:build",
            summary="requests from a JSON-lines file",
            provides=_tokens,
            requires=prompts_requirements,
        ),
        Component(
            seam="workload",
            name="synthetic",
            config=SyntheticConfig,
            build=f"{package}.synthetic:build",
            summary="length distributions, shared prefixes and an arrival process",
            provides=_tokens,
            requires=synthetic_requirements,
        ),
        Component(
            seam="workload",
            name="trace",
            config=TraceConfig,
            build=f"{package}.trace:build",
            summary="replay of a Mooncake trace by block hashes, without tokens",
            requires=trace_requirements,
        ),
    ]
