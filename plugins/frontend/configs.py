"""The options of the built-in workloads, and what is wrong with a set of them."""

import json
from collections.abc import Iterable
from dataclasses import dataclass, fields
from functools import partial
from typing import Any

from interlock.core.capabilities import Composition, Requirement
from interlock.core.closest import unknown_name
from interlock.core.errors import ConfigError
from interlock.core.options import option, plain
from interlock.core.request import SamplingParams

LENGTHS = ("constant", "uniform", "lognormal")
ARRIVALS = ("at_once", "constant", "poisson", "gamma")
MOONCAKE = "a Mooncake FAST'25 trace (github.com/kvcache-ai/Mooncake, FAST25-release/traces)"
SOURCES = ("auto", "text", "random")
DEFAULTS = SamplingParams()
MOST_TOKENS, MOST_SPREAD = 1_000_000_000, 100.0
"""Beyond any model's length, and within what the length laws can draw."""


@dataclass
class PromptsConfig:
    """Requests from a JSON-lines file."""

    name: str = "prompts"
    path: str = option("", "JSON-lines file (also .gz): prompt, messages or prompt_token_ids")
    max_tokens: int | None = option(
        None, "output limit of lines without their own; null: the run's"
    )
    limit: int | None = option(None, "take the first so many lines; null: all")
    rate: float | None = option(
        None, "Poisson arrivals per second for lines without arrival_s; null: all at 0"
    )

    def __post_init__(self) -> None:
        _refuse(
            *_below("max_tokens", self.max_tokens, 1),
            *_below("limit", self.limit, 1),
            *_not_positive("rate", self.rate),
        )

    def missing(self) -> list[str]:
        """Why it cannot be used as it stands: no path."""
        return _missing_path(self.path, "a JSON-lines file of prompts")


@dataclass
class SyntheticConfig:
    """Requests made from length distributions, shared prefixes and an arrival process."""

    name: str = "synthetic"
    num_requests: int = option(24, "number of requests")
    prompt_lengths: str = option("uniform", "law of a prompt's own part: " + ", ".join(LENGTHS))
    prompt_tokens: int = option(96, "mean length of a prompt's own part")
    prompt_spread: float = option(0.5, "uniform: half-width / mean; lognormal: std / mean")
    output_lengths: str = option("uniform", "law of the output length: " + ", ".join(LENGTHS))
    output_tokens: int = option(48, "mean output length")
    output_spread: float = option(0.5, "as prompt_spread")
    ignore_eos: bool = option(True, "run to the drawn output length, past end-of-text tokens")
    prefixes: int = option(3, "number of different shared prefixes")
    prefix_tokens: int = option(96, "length of a shared prefix, before the own part; 0: none")
    prefix_share: float = option(0.75, "share of the conversations that start with one, 0 to 1")
    turns: int = option(1, "requests of a conversation; each one's prompt continues the last one's")
    think_s: float = option(1.0, "time from a turn's arrival to the next turn's")
    arrivals: str = option("poisson", "arrival process: " + ", ".join(ARRIVALS))
    rate: float = option(16.0, "mean arrivals (of conversations) per second; unused at_once")
    burstiness: float = option(1.0, "gamma arrivals: shape; their CV is 1 / sqrt(burstiness)")
    source: str = option(
        "auto",
        "tokens: text (held_out.txt of the model), random ids, or auto: text where there is one",
    )

    def __post_init__(self) -> None:
        _refuse(
            *_below("num_requests", self.num_requests, 1),
            *_unknown("prompt_lengths", self.prompt_lengths, LENGTHS),
            *_unknown("output_lengths", self.output_lengths, LENGTHS),
            *_unknown("arrivals", self.arrivals, ARRIVALS),
            *_unknown("source", self.source, SOURCES),
            *_outside("prompt_tokens", self.prompt_tokens, 1, MOST_TOKENS),
            *_outside("output_tokens", self.output_tokens, 1, MOST_TOKENS),
            *_outside("prompt_spread", self.prompt_spread, 0, MOST_SPREAD),
            *_outside("output_spread", self.output_spread, 0, MOST_SPREAD),
            *_below("prefixes", self.prefixes, 0),
            *_below("prefix_tokens", self.prefix_tokens, 0),
            *_outside("prefix_share", self.prefix_share, 0, 1),
            *_below("turns", self.turns, 1),
            *_below("think_s", self.think_s, 0),
            *_not_positive("rate", self.rate),
            *_not_positive("burstiness", self.burstiness),
        )


@dataclass
class ChatConfig:
    """Conversations in which each turn waits for the last one's answer."""

    name: str = "chat"
    path: str = option("", "JSON-lines file (also .gz) of user messages; empty: the shipped ones")
    max_tokens: int | None = option(
        None, "output limit of lines without their own; null: the run's"
    )
    limit: int | None = option(None, "take the first so many conversations; null: all")
    rate: float | None = option(
        None, "Poisson arrivals of conversations per second, where a line has no arrival_s; "
        "null: all at 0",
    )  # fmt: skip
    think_s: float = option(0.0, "time from the end of an answer to the next turn's arrival")

    def __post_init__(self) -> None:
        _refuse(
            *_below("max_tokens", self.max_tokens, 1),
            *_below("limit", self.limit, 1),
            *_not_positive("rate", self.rate),
            *_below("think_s", self.think_s, 0),
        )


@dataclass
class TraceConfig:
    """A recorded trace whose prompts are known by the hashes of their blocks."""

    name: str = "trace"
    path: str = option("", "Mooncake trace, JSON lines (also .gz)")
    limit: int | None = option(None, "take the first so many requests of the window; null: all")
    speed: float = option(1.0, "replay so many times faster than recorded")
    start_s: float = option(0.0, "begin at this time of the trace, which becomes time 0")
    duration_s: float | None = option(None, "length of the window in trace time; null: to the end")
    block_tokens: int = option(512, "tokens of a hashed block")

    def __post_init__(self) -> None:
        _refuse(
            *_below("limit", self.limit, 1),
            *_not_positive("speed", self.speed),
            *_below("start_s", self.start_s, 0),
            *_not_positive("duration_s", self.duration_s),
            *_below("block_tokens", self.block_tokens, 1),
        )

    def missing(self) -> list[str]:
        """Why it cannot be used as it stands: no path."""
        return _missing_path(self.path, MOONCAKE)


def prompts_requirements(config: PromptsConfig, _model: Any) -> Iterable[Requirement]:
    """That a file is named: what has no default can only be asked for when it is chosen."""
    return [partial(_say, problem) for problem in config.missing()]


def synthetic_requirements(_config: SyntheticConfig, _model: Any) -> Iterable[Requirement]:
    """That no setting is given whose place is taken by an option of the workload."""
    instead = {"max_tokens": "workload.output_tokens", "ignore_eos": "workload.ignore_eos"}
    return [partial(_unused, key, f"set {other}") for key, other in instead.items()]


def chat_requirements(_config: ChatConfig, _model: Any) -> Iterable[Requirement]:
    """That no setting is given that a conversation has no place for."""
    why = "every prompt is the conversation so far; leave it out"
    return [partial(_unused, "echo", why)]


def trace_requirements(config: TraceConfig, _model: Any) -> Iterable[Requirement]:
    """That a file is named, and no setting for tokens that nobody draws."""
    unused = [field.name for field in fields(SamplingParams) if field.name != "seed"]
    why = "its requests run to their recorded lengths without tokens; leave it out"
    missing = [partial(_say, problem) for problem in config.missing()]
    return [*missing, *(partial(_unused, key, why) for key in unused)]


def _say(problem: str, _composition: Composition) -> str:
    return problem


def _unused(key: str, instead: str, composition: Composition) -> str | None:
    """Why sampling.<key>, if it was changed, would do nothing with the chosen workload."""
    default = plain(getattr(DEFAULTS, key))
    value = composition.settings.get(f"sampling.{key}", default)
    if value == default:
        return None
    chosen, _ = composition.chosen["workload"]
    return f"workload={chosen} would not use sampling.{key}={json.dumps(value)}: {instead}"


def _refuse(*problems: str) -> None:
    if problems:
        raise ConfigError(problems)


def _missing_path(path: str, what: str) -> list[str]:
    return [] if path else [f"workload.path is not set; give the path of {what}"]


def _below(name: str, value: float | None, least: float) -> list[str]:
    return _outside(name, value, least, float("inf"))


def _outside(name: str, value: float | None, least: float, most: float) -> list[str]:
    if value is None or (least <= value <= most and value < float("inf")):
        return []
    allowed = f"at least {least:g}" if most == float("inf") else f"from {least:g} to {most:g}"
    return [f"{name}={value} is not {allowed}"]


def _not_positive(name: str, value: float | None) -> list[str]:
    if value is None or 0 < value < float("inf"):
        return []
    return [f"{name}={value} is not a finite number above 0"]


def _unknown(name: str, value: str, known: tuple[str, ...]) -> list[str]:
    return [] if value in known else [unknown_name(name, value, known)]
