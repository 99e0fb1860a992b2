"""Built-in components: attention."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from interlock.core.capabilities import Capability, ServesAttention, ServesTrees, ServesWindows
from interlock.core.component import Component
from interlock.core.model import ModelDescription

SEAM = "attention"


@dataclass
class AutoConfig:
    """The first automatic backend that serves every layer of the model."""

    name: str = "auto"


@dataclass
class ReferenceConfig:
    """The naive oracle: one query at a time, from the formula. Slow."""

    name: str = "reference"


@dataclass
class GqaConfig:
    """Multi-head, grouped-query and multi-query attention over K and V planes."""

    name: str = "gqa"


@dataclass
class MlaConfig:
    """Multi-head latent attention over one plane of latents."""

    name: str = "mla"
    form: str = field(
        default="cost",
        metadata={
            "help": "cost: fewest multiplications per request and step; absorbed: queries are "
            "taken into latent space; expanded: latents are expanded to heads"
        },
    )


def _serves_both(_config: Any, _model: ModelDescription | None) -> Iterable[Capability]:
    return (ServesAttention("heads"), ServesAttention("latent"), ServesWindows(), ServesTrees())


def _serves_heads(_config: Any, _model: ModelDescription | None) -> Iterable[Capability]:
    return (ServesAttention("heads"), ServesWindows(), ServesTrees())


def _serves_latent(_config: Any, _model: ModelDescription | None) -> Iterable[Capability]:
    return (ServesAttention("latent"), ServesWindows(), ServesTrees())


def components() -> list[Component]:
    """Every attention backend of this group."""
    return [
        Component(
            SEAM,
            "reference",
            ReferenceConfig,
            "interlock.plugins.attention.reference:build",
            "the naive oracle for every form, one query at a time",
            provides=_serves_both,
        ),
        Component(
            SEAM,
            "gqa",
            GqaConfig,
            "interlock.plugins.attention.gqa:build",
            "multi-head, grouped-query and multi-query attention",
            provides=_serves_heads,
            automatic=True,
        ),
        Component(
            SEAM,
            "mla",
            MlaConfig,
            "interlock.plugins.attention.mla:build",
            "multi-head latent attention, absorbed or expanded by cost",
            provides=_serves_latent,
            automatic=True,
        ),
    ]
