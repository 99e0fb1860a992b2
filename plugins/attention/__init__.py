"""Built-in components: attention."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from interlock.core.capabilities import (
    BatchInvariant,
    Capability,
    CapturesGraphs,
    Composition,
    Requirement,
    ServesAttention,
    ServesSinks,
    ServesSoftCaps,
    ServesTrees,
    ServesWindows,
    StoresFp8,
)
from interlock.core.closest import unknown_name
from interlock.core.component import Component
from interlock.core.errors import ConfigError
from interlock.core.model import ModelDescription
from interlock.core.options import option
from interlock.plugins.attention.kernel_choice import (
    Limit,
    kernel_option,
    kernel_requirement,
    require_known,
    runs_triton,
)

FORMS = ("cost", "absorbed", "expanded")
"""How attention=mla computes a row."""
LARGEST_HEAD, LARGEST_GROUP = 256, 128
"""What tiles of the Triton kernels of attention=gqa hold."""
LARGEST_RANK, LARGEST_ROPE = 512, 128
"""What tiles of the Triton kernels of attention=mla hold."""


@dataclass(frozen=True)
class ReferenceConfig:
    """The naive oracle: one query at a time, from the formula. Slow."""

    name: str = "reference"


@dataclass(frozen=True)
class GqaConfig:
    """Multi-head, grouped-query and multi-query attention over K and V planes."""

    name: str = "gqa"
    kernel: str = kernel_option()

    def __post_init__(self) -> None:
        require_known(self.kernel)


@dataclass(frozen=True)
class MlaConfig:
    """Multi-head latent attention over one plane of latents."""

    name: str = "mla"
    form: str = option(
        "cost",
        "cost: fewest multiplications per request and step (kernel=triton: absorbed up to 32 "
        "new tokens, so that launches repeat); absorbed: queries are "
        "taken into latent space; expanded: latents are expanded to heads "
        "(numerics=batch_invariant: cost means absorbed, and expanded is refused)",
    )
    kernel: str = kernel_option()

    def __post_init__(self) -> None:
        require_known(self.kernel)
        if self.form not in FORMS:
            raise ConfigError(unknown_name("form", self.form, FORMS))


def _serves_both(_config: Any, _model: ModelDescription | None) -> Iterable[Capability]:
    return (*_serves_heads(_config, _model), ServesAttention("latent"))


def _serves_heads(_config: Any, _model: ModelDescription | None) -> Iterable[Capability]:
    return (
        ServesAttention("heads"),
        ServesWindows(),
        ServesTrees(),
        ServesSoftCaps(),
        ServesSinks(),
        StoresFp8(),
    )


def _serves_heads_invariantly(config: Any, model: ModelDescription | None) -> Iterable[Capability]:
    captures = _captures(config, model, heads_limit)
    return (*_serves_heads(config, model), BatchInvariant(), *captures)


def _serves_latent(config: Any, model: ModelDescription | None) -> Iterable[Capability]:
    # What is expanded depends on lengths: such steps cannot be captured.
    captures = () if config.form == "expanded" else _captures(config, model, latent_limit)
    return (
        ServesAttention("latent"), ServesWindows(), ServesTrees(), StoresFp8(), BatchInvariant(),
        *captures,
    )  # fmt: skip


def _captures(
    config: Any, model: ModelDescription | None, limit: Limit
) -> tuple[CapturesGraphs, ...]:
    """Triton's plans can be captured, torch's cannot."""
    on_cuda = model is not None and runs_triton(config.kernel, "cuda", "fast", model, limit)
    return (CapturesGraphs(),) if on_cuda else ()


def _one_form(config: Any, _model: ModelDescription | None) -> Iterable[Requirement]:
    def requirement(composition: Composition) -> str | None:
        if composition.settings.get("numerics") != "batch_invariant" or config.form != "expanded":
            return None
        return (
            "attention.form=expanded: numerics=batch_invariant runs every row absorbed; set "
            "attention.form=absorbed"
        )

    return (requirement,)


def heads_limit(model: ModelDescription) -> str | None:
    """Why attention=gqa has no Triton kernels for a model."""
    specs = [spec for spec in model.attention if spec.form == "heads"]
    size = max((max(spec.head_dim, spec.v_head_dim) for spec in specs), default=0)
    if size > LARGEST_HEAD:
        return f"model={model.name} has heads of size {size}, and kernels go to {LARGEST_HEAD}"
    group = max((spec.num_heads // spec.num_kv_heads for spec in specs), default=0)
    if group > LARGEST_GROUP:
        return (
            f"model={model.name} has {group} query heads for one of keys, and kernels go to "
            f"{LARGEST_GROUP}"
        )
    return None


def latent_limit(model: ModelDescription) -> str | None:
    """Why attention=mla has no Triton kernels for a model."""
    rank = max(spec.latent_rank for spec in model.attention)
    rope = max(spec.rope_dim for spec in model.attention)
    if rank <= LARGEST_RANK and rope <= LARGEST_ROPE:
        return None
    return (
        f"model={model.name} has kv_lora_rank={rank} and qk_rope_head_dim={rope}, and kernels go "
        f"to {LARGEST_RANK} and {LARGEST_ROPE}"
    )


def _mla_requires(config: Any, model: ModelDescription | None) -> Iterable[Requirement]:
    return (*_one_form(config, model), *kernel_requirement(latent_limit)(config, model))


def components() -> list[Component]:
    """Every attention backend of this group."""
    here = "interlock.plugins.attention"
    return [
        Component(
            "attention", "reference", ReferenceConfig, f"{here}.reference:build",
            "the naive oracle for every form, one query at a time", provides=_serves_both,
        ),
        Component(
            "attention", "gqa", GqaConfig, f"{here}.gqa:build",
            "multi-head, grouped-query and multi-query attention",
            provides=_serves_heads_invariantly, requires=kernel_requirement(heads_limit),
            automatic=True,
        ),
        Component(
            "attention", "mla", MlaConfig, f"{here}.mla:build",
            "multi-head latent attention, absorbed or expanded by cost", provides=_serves_latent,
            requires=_mla_requires, automatic=True,
        ),
    ]  # fmt: skip
