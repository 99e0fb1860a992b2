"""The choices of spec/verifier, their options, and what they ask of drafts."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from interlock.core.capabilities import (
    AcceptsAnyDraft,
    Capability,
    Composition,
    DraftsChains,
    Lossy,
    Requirement,
    SamplesDrafts,
)
from interlock.core.component import Component
from interlock.core.errors import ConfigError
from interlock.core.model import ModelDescription
from interlock.core.options import option


@dataclass(frozen=True)
class TargetOnlyConfig:
    """A candidate is accepted when it is the token that the target draws."""

    name: str = "target_only"


@dataclass(frozen=True)
class RatioConfig:
    """A candidate x of a chain is accepted with probability min(1, p(x) / q(x))."""

    name: str = "ratio"


@dataclass(frozen=True)
class RecursiveConfig:
    """Siblings are tried in turn, each against what is left of the target's law."""

    name: str = "recursive"


@dataclass(frozen=True)
class BlockConfig:
    """A chain is accepted as a block: a later candidate can make up for an earlier one."""

    name: str = "block"


@dataclass(frozen=True)
class TypicalConfig:
    """A candidate is accepted when the target finds it typical; the output follows another law."""

    name: str = "typical"
    epsilon: float = option(0.09, "largest probability that is asked of a candidate, 0 to 1")
    delta: float = option(0.3, "what is asked is at most this times exp(-entropy), above 0")

    def __post_init__(self) -> None:
        problems = []
        if not 0 < self.epsilon < 1:
            problems.append(f"epsilon={self.epsilon} is not a number between 0 and 1")
        if not 0 < self.delta < math.inf:
            problems.append(f"delta={self.delta} is not a number above 0")
        if problems:
            raise ConfigError(problems)


def components() -> list[Component]:
    """Every built-in choice of spec/verifier."""
    here = "interlock.plugins.speculative.verifiers"
    return [
        Component(
            "spec/verifier", "target_only", TargetOnlyConfig, f"{here}.target_only:build",
            "accepts what the target draws itself; exact for every draft", provides=_any_draft,
        ),
        Component(
            "spec/verifier", "ratio", RatioConfig, f"{here}.ratio:build",
            "accepts a drawn chain by the ratio of the two laws, one token after the other",
            requires=_drawn_chains,
        ),
        Component(
            "spec/verifier", "recursive", RecursiveConfig, f"{here}.recursive:build",
            "tries drawn siblings in turn: the ratio rule for trees", requires=_drawn,
        ),
        Component(
            "spec/verifier", "block", BlockConfig, f"{here}.block:build",
            "accepts a drawn chain as a whole: never less than ratio", requires=_drawn_chains,
        ),
        Component(
            "spec/verifier", "typical", TypicalConfig, f"{here}.typical:build",
            "accepts what the target finds likely enough; lossy above temperature 0",
            provides=_another_law,
        ),
    ]  # fmt: skip


def _any_draft(_config: Any, _model: ModelDescription | None) -> Iterable[Capability]:
    return (AcceptsAnyDraft(),)


def _another_law(_config: Any, _model: ModelDescription | None) -> Iterable[Capability]:
    return (Lossy(),)


def _drawn(config: Any, _model: ModelDescription | None) -> Iterable[Requirement]:
    def candidates_with_laws(composition: Composition) -> str | None:
        if composition.has(SamplesDrafts()):
            return None
        name, drafter = composition.chosen["spec"]
        how = (
            "set spec.proposal=sampled"
            if hasattr(drafter, "proposal")
            else "choose a drafter that has spec.proposal=sampled"
        )
        return (
            f"spec/verifier={config.name} needs candidates that are drawn from a law, and "
            f"spec={name} chooses them: {how}, or spec/verifier=target_only"
        )

    return (candidates_with_laws,)


def _drawn_chains(config: Any, model: ModelDescription | None) -> Iterable[Requirement]:
    def no_siblings(composition: Composition) -> str | None:
        if composition.has(DraftsChains()) or not composition.has(SamplesDrafts()):
            return None
        name, _ = composition.chosen["spec"]
        return (
            f"spec/verifier={config.name} is a rule for chains, and spec={name} drafts trees: set "
            "spec/verifier=recursive or target_only, or choose a drafter of chains"
        )

    return (*_drawn(config, model), no_siblings)
