"""Options of spec/length, and what its choices need."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from interlock.core.capabilities import AcceptsAnyDraft, RatesDrafts, Requirement, needs
from interlock.core.closest import unknown_name
from interlock.core.component import Component
from interlock.core.errors import ConfigError
from interlock.core.model import ModelDescription
from interlock.core.options import option

OF = ("path", "candidate")
"""What spec/length=threshold compares with its limit."""
SEARCHES = ("early_stop", "global")
"""How spec/length=dspark looks for the best step."""


@dataclass(frozen=True)
class FixedLengthConfig:
    """The same number of candidates for every request and step."""

    name: str = "fixed"
    num: int | None = option(None, "candidates, 0 or more; null: as many as the drafter makes")

    def __post_init__(self) -> None:
        if self.num is not None and self.num < 0:
            raise ConfigError(f"num={self.num} is not a whole number >= 0")


@dataclass(frozen=True)
class ScheduleConfig:
    """Fewer candidates the more requests decode together, by a table."""

    name: str = "schedule"
    at: tuple[tuple[int, int], ...] = option(
        ((1, 7), (8, 3), (32, 1), (64, 0)),
        "{requests: candidates}: from so many decoding requests on, so many candidates each",
    )

    def __post_init__(self) -> None:
        problems = _not_rising("at", [requests for requests, _ in self.at])
        problems += [f"at={{{k}: {n}}} are no candidates, 0 or more" for k, n in self.at if n < 0]
        _refuse(problems)


@dataclass(frozen=True)
class EmaConfig:
    """Steps up and down among a few lengths, as the moving average of accepted candidates says."""

    name: str = "ema"
    tiers: tuple[tuple[int, tuple[int, ...]], ...] = option(
        ((1, (1, 3, 5, 7)), (8, (0, 1, 3)), (32, (0, 1)), (64, (0,))),
        "{requests: [lengths]}: from so many decoding requests on, the lengths to choose from",
    )
    weight: float = option(0.2, "weight of the newest step in the average, above 0 up to 1")
    every: int = option(5, "steps between two decisions")
    warmup: int = option(10, "steps before the first decision")
    up: float = option(0.0, "accepted above (length - 0.5 + up) goes to the next longer length")
    down: float = option(-0.25, "accepted up to (shorter - 0.5 + down) goes to the shorter length")
    off: float = option(0.25, "accepted up to this goes from the shortest length to 0, if listed")
    probe: int = option(64, "steps at length 0 before the next longer one is tried again")

    def __post_init__(self) -> None:
        problems = _not_rising("tiers", [requests for requests, _ in self.tiers])
        for requests, lengths in self.tiers:
            if not lengths or list(lengths) != sorted({n for n in lengths if n >= 0}):
                problems.append(f"tiers={{{requests}: {list(lengths)}}} are no rising lengths >= 0")
        if not 0 < self.weight <= 1:
            problems.append(f"weight={self.weight} is not above 0 and up to 1")
        problems += _below(self, 1, "every", "probe") + _below(self, 0, "warmup")
        _refuse(problems)


@dataclass(frozen=True)
class GoodputConfig:
    """The length that gives most tokens a second, by measured acceptance and measured costs."""

    name: str = "goodput"
    memory: int = option(100, "steps after which evidence counts a third")
    hysteresis: float = option(0.03, "gain, as a share, that is worth changing the length")
    probe: int = option(64, "one step in so many tries another length: none, or one more")

    def __post_init__(self) -> None:
        problems = _below(self, 1, "memory") + _below(self, 2, "probe")
        if not 0 <= self.hysteresis < 1:
            problems.append(f"hysteresis={self.hysteresis} is not from 0 up to (not including) 1")
        _refuse(problems)


@dataclass(frozen=True)
class DSparkConfig:
    """Verified lengths of all requests together, from estimates of acceptance and measured costs.

    The drafter always makes its whole block; what is unlikely to pay for its row is not verified.
    """

    name: str = "dspark"
    search: str = option(
        SEARCHES[0],
        "early_stop: by falling survival, until one does not pay (exact with any verifier); "
        "global: the best over all (only with a verifier that is exact for any draft)",
    )
    calibrate: bool = option(True, "correct the drafter's estimates by what was accepted so far")
    probe: int = option(64, "one step in so many verifies everything or nothing, to measure")

    def __post_init__(self) -> None:
        problems = _below(self, 4, "probe")
        if self.search not in SEARCHES:
            problems.append(unknown_name("search", self.search, SEARCHES))
        _refuse(problems)


@dataclass(frozen=True)
class ThresholdConfig:
    """Each draft up to its first doubtful candidate."""

    name: str = "threshold"
    least: float = option(0.3, "chance below which a candidate is doubtful, 0 to 1; 0: none is")
    of: str = option(
        OF[0],
        "path: the chance that a candidate and all before it are accepted; candidate: its own",
    )

    def __post_init__(self) -> None:
        problems = []
        if not 0 <= self.least <= 1:
            problems.append(f"least={self.least} is not from 0 to 1")
        if self.of not in OF:
            problems.append(unknown_name("of", self.of, OF))
        _refuse(problems)


def components() -> list[Component]:
    """Every built-in choice of spec/length."""
    here = "interlock.plugins.speculative.lengths"
    return [
        Component(
            "spec/length", "fixed", FixedLengthConfig, f"{here}.fixed:build",
            "the same number of drafts for every request and step",
        ),
        Component(
            "spec/length", "schedule", ScheduleConfig, f"{here}.schedule:build",
            "fewer drafts the more requests decode together, by a table",
        ),
        Component(
            "spec/length", "ema", EmaConfig, f"{here}.ema:build",
            "steps up and down as the average of accepted drafts says (SGLang's adaptive steps)",
        ),
        Component(
            "spec/length", "goodput", GoodputConfig, f"{here}.goodput:build",
            "the length that gives most tokens a second, by measured acceptance and costs",
        ),
        Component(
            "spec/length", "dspark", DSparkConfig, f"{here}.dspark:build",
            "verified lengths of all requests together, by estimates and measured costs",
            requires=_dspark_needs,
        ),
        Component(
            "spec/length", "threshold", ThresholdConfig, f"{here}.threshold:build",
            "verifies each draft up to its first doubtful candidate", requires=_rated,
        ),
    ]  # fmt: skip


def _rated(config: Any, _model: ModelDescription | None) -> Iterable[Requirement]:
    return (
        needs(
            RatesDrafts(),
            f"spec/length={config.name} decides by the drafter's estimates, and the chosen spec "
            "makes none; choose one that does, or spec/length=goodput",
        ),
    )


def _dspark_needs(config: DSparkConfig, model: ModelDescription | None) -> Iterable[Requirement]:
    if config.search == "early_stop":
        return _rated(config, model)
    reason = (
        "spec.length.search=global decides about candidates by what was drawn after them, which "
        "biases the chosen verifier; set spec/verifier=target_only or spec.length.search=early_stop"
    )
    return (*_rated(config, model), needs(AcceptsAnyDraft(), reason))


def _not_rising(name: str, keys: Sequence[int]) -> list[str]:
    if keys and keys[0] == 1 and list(keys) == sorted(set(keys)):
        return []
    found = f"{name}={{{', '.join(f'{key}: ...' for key in keys)}}}"
    return [f"{found}: the numbers of requests do not rise from 1; write {{1: ..., 8: ...}}"]


def _below(config: Any, least: int, *names: str) -> list[str]:
    values = [(name, getattr(config, name)) for name in names]
    return [f"{name}={value} is not a whole number >= {least}" for name, value in values
            if value < least]  # fmt: skip


def _refuse(problems: Sequence[str]) -> None:
    if problems:
        raise ConfigError(list(problems))
