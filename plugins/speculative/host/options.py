"""Options of the drafters that look at token ids alone."""

import math
from collections.abc import Iterable
from dataclasses import dataclass

from interlock.core.capabilities import (
    Capability,
    CarriesTokens,
    Composition,
    DraftsChains,
    RatesDrafts,
    Requirement,
    RunsModel,
    ServesTrees,
    SimulatesDrafts,
)
from interlock.core.component import Component
from interlock.core.errors import ConfigError
from interlock.core.model import ModelDescription
from interlock.core.options import option


@dataclass(frozen=True)
class SuffixConfig:
    """Suffix decoding: what most often followed the newest tokens, here or in past answers."""

    name: str = "suffix"
    num_drafts: int = option(8, "candidates per request and step, 1 or more")
    tree: bool = option(False, "draft the likeliest continuations as a tree, not the one path")
    max_depth: int = option(64, "tokens that are matched at most, 1 or more")
    factor: float = option(1.0, "candidates per matched token, 0 or more")
    offset: float = option(0.0, "candidates beyond those, may be negative")
    min_prob: float = option(0.1, "a path ends before its estimated probability falls below")
    cached_requests: int = option(1000, "past answers, of all tenants, to remember, 0 or more")

    def __post_init__(self) -> None:
        problems = _below(self, 1, "num_drafts", "max_depth") + _below(self, 0, "cached_requests")
        if not (math.isfinite(self.factor) and self.factor >= 0):
            problems.append(f"factor={self.factor} is not a number >= 0")
        if not math.isfinite(self.offset):
            problems.append(f"offset={self.offset} is not a number")
        if not 0 <= self.min_prob <= 1:
            problems.append(f"min_prob={self.min_prob} is not in 0 to 1")
        if problems:
            raise ConfigError(problems)


@dataclass(frozen=True)
class LookaheadConfig:
    """Lookahead decoding: n-grams from guesses that the target itself improves step by step."""

    name: str = "lookahead"
    window: int = option(7, "positions ahead that are guessed, 1 or more")
    ngram: int = option(4, "tokens of an n-gram, 2 or more")
    guesses: int = option(7, "n-grams that are verified in a step, 1 or more")

    def __post_init__(self) -> None:
        problems = _below(self, 1, "window", "guesses") + _below(self, 2, "ngram")
        if problems:
            raise ConfigError(problems)

    @property
    def num_drafts(self) -> int:
        """Candidates of a step: those of the window and those of the n-grams."""
        return (self.window + self.guesses) * (self.ngram - 1)


def _below(config: object, least: int, *names: str) -> list[str]:
    values = {name: getattr(config, name) for name in names}
    return [f"{n}={v} is not a whole number >= {least}" for n, v in values.items() if v < least]


def components() -> list[Component]:
    """The choices of spec that need no network."""
    here = "interlock.plugins.speculative.host"
    return [
        Component(
            "spec", "suffix", SuffixConfig, f"{here}.suffix:build",
            "what most often followed the same tokens, in this text or in past answers",
            provides=_suffix_gives, requires=_suffix_needs,
        ),
        Component(
            "spec", "lookahead", LookaheadConfig, f"{here}.lookahead:build",
            "n-grams out of parallel guesses that the target improves step by step",
            requires=_lookahead_needs,
        ),
    ]  # fmt: skip


def _suffix_gives(config: SuffixConfig, _model: ModelDescription | None) -> Iterable[Capability]:
    return (RatesDrafts(),) if config.tree else (RatesDrafts(), DraftsChains())


def tokens_or_simulation(choice: str) -> Requirement:
    """Token ids to look up, or an executor that makes drafts up."""

    def met(composition: Composition) -> str | None:
        if composition.has(CarriesTokens()) or composition.has(SimulatesDrafts()):
            return None
        return (
            f"spec={choice} looks token ids up, but the workload carries none (its prompts are "
            "block hashes), and the executor does not simulate drafts"
        )

    return met


def _serves_trees(choice: str) -> Requirement:
    def met(composition: Composition) -> str | None:
        if composition.has(ServesTrees()) or not composition.has(RunsModel()):
            return None
        return f"spec={choice} drafts trees, which the attention component does not compute"

    return met


def _suffix_needs(config: SuffixConfig, _model: ModelDescription | None) -> Iterable[Requirement]:
    needed = [tokens_or_simulation("suffix")]
    return [*needed, _serves_trees("suffix (tree=true)")] if config.tree else needed


def _lookahead_needs(
    config: LookaheadConfig, _model: ModelDescription | None
) -> Iterable[Requirement]:
    def draws(composition: Composition) -> str | None:
        if composition.has(RunsModel()):
            return None
        return "spec=lookahead learns from what a real forward pass draws after each candidate"

    def a_step_for_the_window(composition: Composition) -> str | None:
        needed = 1 + config.window * (config.ngram - 1)
        budget = composition.settings.get("scheduler.budget_tokens", needed)
        if needed <= budget:
            return None
        return (
            f"spec=lookahead moves its window on in steps that hold 1 + window * (ngram - 1) = "
            f"{needed} tokens of a request, but scheduler.budget_tokens={budget}: set at least "
            f"{needed}, or a smaller spec.window or spec.ngram"
        )

    trees = _serves_trees("lookahead")
    return (draws, tokens_or_simulation("lookahead"), trees, a_step_for_the_window)
