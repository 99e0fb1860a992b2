"""Built-in components: drafters and verifiers."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from interlock.core.capabilities import (
    AcceptsAnyDraft,
    Capability,
    CarriesTokens,
    Composition,
    Requirement,
    RunsModel,
    SimulatesDrafts,
)
from interlock.core.closest import unknown_name
from interlock.core.component import Component
from interlock.core.errors import ConfigError
from interlock.core.model import ModelDescription
from interlock.core.options import option

MATCHES = ("latest", "earliest")
"""Which earlier occurrence spec=ngram copies from."""


@dataclass(frozen=True)
class NoneConfig:
    """Plain decoding: one token per request and step."""

    name: str = "none"


@dataclass(frozen=True)
class NgramConfig:
    """Prompt lookup: copy what followed the newest tokens when they occurred before."""

    name: str = "ngram"
    num_drafts: int = option(5, "candidates per request and step, 1 or more")
    ngram_max: int = option(4, "tokens of the longest n-gram, looked up first")
    ngram_min: int = option(2, "tokens of the shortest n-gram, 1 to ngram_max")
    match: str = option("latest", "occurrence to copy from: latest (nearest) or earliest")

    def __post_init__(self) -> None:
        problems = []
        if self.num_drafts < 1:
            problems.append(f"num_drafts={self.num_drafts} is not a whole number >= 1")
        if self.ngram_min < 1:
            problems.append(f"ngram_min={self.ngram_min} is not a whole number >= 1")
        if self.ngram_max < self.ngram_min:
            problems.append(f"ngram_max={self.ngram_max} is below ngram_min={self.ngram_min}")
        if self.match not in MATCHES:
            problems.append(unknown_name("match", self.match, MATCHES))
        if problems:
            raise ConfigError(problems)


@dataclass(frozen=True)
class EagleConfig:
    """EAGLE-1: a chain drafted by one trained layer over the target's features."""

    name: str = "eagle"
    num_drafts: int = option(5, "candidates per request and step, 1 or more")
    path: str | None = option(None, "directory of the head; null: `eagle` in the model's directory")

    def __post_init__(self) -> None:
        if self.num_drafts < 1:
            raise ConfigError(f"num_drafts={self.num_drafts} is not a whole number >= 1")


@dataclass(frozen=True)
class TargetOnlyConfig:
    """A candidate is accepted when it is the token that the target draws."""

    name: str = "target_only"


@dataclass(frozen=True)
class FixedLengthConfig:
    """The same number of candidates for every request and step."""

    name: str = "fixed"
    num: int | None = option(None, "candidates, 0 or more; null: as many as the drafter makes")

    def __post_init__(self) -> None:
        if self.num is not None and self.num < 0:
            raise ConfigError(f"num={self.num} is not a whole number >= 0")


def components() -> list[Component]:
    """Every built-in choice of spec, spec/verifier and spec/length."""
    here = "interlock.plugins.speculative"
    return [
        Component("spec", "none", NoneConfig, f"{here}.none:build", "no drafts"),
        Component(
            "spec", "ngram", NgramConfig, f"{here}.ngram:build",
            "prompt lookup: copies what followed the same tokens before", requires=_ngram_needs,
        ),
        Component(
            "spec", "eagle", EagleConfig, f"{here}.eagle:build",
            "a trained layer over the target's features drafts a chain", requires=_eagle_needs,
        ),
        Component(
            "spec/verifier", "target_only", TargetOnlyConfig, f"{here}.target_only:build",
            "accepts what the target draws itself; exact for every draft",
            provides=_exact_for_any_draft,
        ),
        Component(
            "spec/length", "fixed", FixedLengthConfig, f"{here}.fixed_length:build",
            "the same number of drafts for every request and step",
        ),
    ]  # fmt: skip


def _exact_for_any_draft(_config: Any, _model: ModelDescription | None) -> Iterable[Capability]:
    return (AcceptsAnyDraft(),)


def _ngram_needs(_config: NgramConfig, _model: ModelDescription | None) -> Iterable[Requirement]:
    def tokens_or_simulation(composition: Composition) -> str | None:
        if composition.has(CarriesTokens()) or composition.has(SimulatesDrafts()):
            return None
        return (
            "spec=ngram looks token ids up in the prompt, but the workload carries none (its "
            "prompts are block hashes), and the executor does not simulate drafts"
        )

    return (tokens_or_simulation,)


def eagle_directory(config: EagleConfig, model: ModelDescription | None) -> Path | None:
    """Where the head of this model is expected; None for a model without a directory."""
    if config.path is not None:
        return Path(config.path).expanduser()
    return model.directory / "eagle" if model and model.directory else None


def _eagle_needs(config: EagleConfig, model: ModelDescription | None) -> Iterable[Requirement]:
    def a_forward_pass(composition: Composition) -> str | None:
        if composition.has(RunsModel()) or composition.has(SimulatesDrafts()):
            return None
        return (
            "spec=eagle drafts from the features of a real forward pass, or has its drafts "
            "simulated, and the executor does neither"
        )

    def a_head(composition: Composition) -> str | None:
        if not composition.has(RunsModel()):
            return None
        directory = eagle_directory(config, model)
        if directory is None:
            return "spec=eagle has no trained head: set spec.path, the model has no directory"
        missing = [f for f in ("config.json", "model.safetensors") if not (directory / f).is_file()]
        if not missing:
            return None
        target = model.directory if model and model.directory else "MODEL"
        return (
            f"spec=eagle has no trained head: {directory} lacks {' and '.join(missing)}; train one "
            f"with `python -m interlock.models.recipe.train_eagle --target {target} --out "
            f"{directory}`, or set spec.path"
        )

    return (a_forward_pass, a_head)
