"""Built-in components: drafters and verifiers."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from interlock.core.capabilities import (
    Capability,
    DraftsChains,
    RatesDrafts,
    Requirement,
    RunsBeams,
    SamplesDrafts,
)
from interlock.core.closest import unknown_name
from interlock.core.component import Component
from interlock.core.errors import ConfigError
from interlock.core.model import ModelDescription
from interlock.core.options import option
from interlock.plugins.speculative.heads import block_options as blocks
from interlock.plugins.speculative.heads import medusa_options as feature_heads
from interlock.plugins.speculative.heads import options as heads_options
from interlock.plugins.speculative.host import options as host_options
from interlock.plugins.speculative.lengths import options as lengths_options
from interlock.plugins.speculative.verifiers import options as verifiers_options

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


def components() -> list[Component]:
    """Every built-in choice of spec, spec/verifier and spec/length."""
    here = "interlock.plugins.speculative"
    return [
        Component(
            "spec", "none", NoneConfig, f"{here}.none:build", "no drafts", provides=_any_of_none
        ),
        Component(
            "spec", "ngram", NgramConfig, f"{here}.ngram:build",
            "prompt lookup: copies what followed the same tokens before",
            provides=_chains, requires=_ngram_needs,
        ),
        *heads_options.components(),
        *blocks.components(),
        *feature_heads.components(),
        *host_options.components(),
        *lengths_options.components(),
        *verifiers_options.components(),
    ]  # fmt: skip


def _any_of_none(_config: Any, _model: ModelDescription | None) -> Iterable[Capability]:
    """Where nothing is drafted there is nothing to get wrong."""
    return (DraftsChains(), SamplesDrafts(), RatesDrafts(), RunsBeams())


def _chains(_config: Any, _model: ModelDescription | None) -> Iterable[Capability]:
    return (DraftsChains(),)


def _ngram_needs(_config: NgramConfig, _model: ModelDescription | None) -> Iterable[Requirement]:
    return (host_options.tokens_or_simulation("ngram"),)
