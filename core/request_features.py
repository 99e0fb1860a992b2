"""What a request asks for beyond plain tokens, and what of it a composition lacks."""

from collections.abc import Iterable, Iterator
from dataclasses import fields
from functools import partial
from typing import Any

from interlock.core.capabilities import (
    Capability,
    Composition,
    Feature,
    Requirement,
    TakesBlockIds,
)
from interlock.core.errors import shown
from interlock.core.options import plain
from interlock.core.request import Request
from interlock.core.sampling_params import SamplingParams

FEATURES: tuple[tuple[str, Any, Feature], ...] = tuple(
    (field.name, field.default, feature)
    for field in fields(SamplingParams)
    for feature in field.metadata.get("needs", ())
)
"""Field of SamplingParams, its default, and what any other value needs."""


def asked(request: Request) -> Iterator[tuple[str, Feature]]:
    """Every feature that the request uses, with what uses it (`logprobs=3`)."""
    for name, default, feature in FEATURES:
        value = getattr(request.sampling, name)
        if value != default:
            yield f"{name}={shown(value)}", feature
    if request.hashed_prompt is not None:
        yield "a prompt of block ids", TakesBlockIds()


def lacking(offered: Iterable[Capability], key_of: dict[str, str]) -> dict[Feature, str]:
    """Every feature that is not offered, with the reason; `key_of` is each seam's choice."""
    known = {feature for _, _, feature in FEATURES} | {TakesBlockIds()}
    return {f: f"{key_of[f.seam]} {f.lack}" for f in known.difference(offered)}


def settings_requirements() -> list[Requirement]:
    """That the run's sampling defaults ask for nothing that the composition lacks."""
    return [partial(_offered, name, plain(default), feature) for name, default, feature in FEATURES]


def _offered(name: str, default: Any, feature: Feature, composition: Composition) -> str | None:
    value = composition.settings.get(f"sampling.{name}", default)
    if value == default or composition.has(feature):
        return None
    choice = f"{feature.seam}={composition.chosen[feature.seam][0]}"
    return f"sampling.{name}={shown(value)} cannot be served: {choice} {feature.lack}"
