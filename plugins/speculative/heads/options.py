"""Options of the EAGLE family, without torch."""

from collections.abc import Iterable
from dataclasses import dataclass

from interlock.core.capabilities import (
    Capability,
    DraftsChains,
    RatesDrafts,
    Requirement,
    SamplesDrafts,
)
from interlock.core.closest import unknown_name
from interlock.core.component import Component
from interlock.core.errors import ConfigError
from interlock.core.model import ModelDescription
from interlock.core.options import option
from interlock.plugins.speculative.heads.directory import needs_a_head

PROPOSALS = ("greedy", "sampled")
"""How candidates come about: the most likely ones, or drawn from the head's law."""


@dataclass(frozen=True)
class EagleConfig:
    """EAGLE-1: a chain drafted by one trained layer over the target's features."""

    name: str = "eagle"
    num_drafts: int = option(5, "candidates per request and step, 1 or more")
    path: str | None = option(None, "directory of the head; null: `eagle` in the model's directory")
    proposal: str = option("greedy", "greedy: most likely tokens; sampled: drawn, with their laws")

    def __post_init__(self) -> None:
        problems = count_problems(self.num_drafts) + proposal_problems(self.proposal)
        if problems:
            raise ConfigError(problems)


def count_problems(num_drafts: int) -> list[str]:
    """What is wrong with a number of candidates."""
    return [] if num_drafts >= 1 else [f"num_drafts={num_drafts} is not a whole number >= 1"]


def proposal_problems(proposal: str) -> list[str]:
    """What is wrong with a way of proposing."""
    return [] if proposal in PROPOSALS else [unknown_name("proposal", proposal, PROPOSALS)]


def chain_offers(config: EagleConfig, _model: ModelDescription | None) -> Iterable[Capability]:
    """What a drafter of chains provides that fills in `Draft.confidence`."""
    sampled = [SamplesDrafts()] if config.proposal == "sampled" else []
    return (DraftsChains(), RatesDrafts(), *sampled)


def components() -> list[Component]:
    """The EAGLE family."""
    here = "interlock.plugins.speculative.heads"
    return [
        Component(
            "spec", "eagle", EagleConfig, f"{here}.eagle:build",
            "a trained layer over the target's features drafts a chain",
            provides=chain_offers, requires=_eagle_needs,
        ),
    ]  # fmt: skip


def _eagle_needs(config: EagleConfig, model: ModelDescription | None) -> Iterable[Requirement]:
    return needs_a_head(config, model, "eagle")
