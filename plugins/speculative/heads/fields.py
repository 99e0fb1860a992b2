"""Fields of a head's config.json, read with every problem at once. No torch.

Legend: sizes are those of one Llama layer.
"""

import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from interlock.core.errors import CheckpointError
from interlock.core.model import AttentionSpec, ModelDescription


class Fields:
    """Reads values and collects what is wrong with them, for one CheckpointError in `finish`."""

    def __init__(self, config: Mapping[str, Any], source: str) -> None:
        self.config, self.source = config, source
        self.problems: list[str] = []

    def integer(self, key: str, default: int | None = None, least: int = 1) -> int:
        """A whole number of at least `least`."""
        value = self.config.get(key, default)
        if type(value) is int and value >= least:
            return value
        self.problems.append(f"{key}={value!r} is not an integer >= {least}")
        return least

    def number(self, key: str, default: float) -> float:
        """A finite number above 0."""
        value = self.config.get(key, default)
        if type(value) in (int, float) and 0 < value <= sys.float_info.max:
            return float(value)
        self.problems.append(f"{key}={value!r} is not a finite number > 0")
        return 1.0

    def flag(self, key: str, default: bool = False) -> bool:
        """true or false."""
        value = self.config.get(key, default)
        if type(value) is bool:
            return value
        self.problems.append(f"{key}={value!r} is not true or false")
        return default

    def only(self, key: str, *allowed: Any) -> None:
        """A field that, where it stands, must have one of these values."""
        if key in self.config and self.config[key] not in allowed:
            options = " or ".join(map(repr, allowed))
            self.problems.append(f"{key}={self.config[key]!r} is not supported, only {options}")

    def same(self, key: str, value: int, wanted: int, target: ModelDescription) -> None:
        """A size that must be the target's."""
        if value != wanted:
            self.problems.append(f"{key}={value} is not the target's {wanted} ({target.name})")

    def inside(self, group: Mapping[str, Any]) -> "Fields":
        """Fields of a nested group, whose problems are these."""
        inside = Fields(group, self.source)
        inside.problems = self.problems
        return inside

    def finish(self) -> None:
        """Raise what was found."""
        if self.problems:
            raise CheckpointError(f"{self.source}: " + "; ".join(self.problems))


@dataclass(frozen=True)
class LayerShape:
    """Sizes of one Llama-style layer. `rates` are the rotary angles a position adds, by pair."""

    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    norm_eps: float
    rates: tuple[float, ...]

    @property
    def spec(self) -> AttentionSpec:
        """Its attention, for a backend."""
        return AttentionSpec(
            form="heads",
            num_heads=self.heads,
            num_kv_heads=self.kv_heads,
            head_dim=self.head_dim,
            v_head_dim=self.head_dim,
            scale=self.head_dim**-0.5,
        )


def read_layer(fields: Fields, target: ModelDescription, own_width: bool = False) -> LayerShape:
    """The layer's sizes. Its width must be the target's, unless the head may have one of its own.

    Problems go to `fields`.
    """
    heads, hidden = fields.integer("num_attention_heads"), fields.integer("hidden_size")
    kv_heads = fields.integer("num_key_value_heads", heads)
    head_dim = fields.integer("head_dim", max(1, hidden // heads))
    fields.only("hidden_act", "silu")
    fields.only("mlp_bias", False)
    if not own_width:
        fields.same("hidden_size", hidden, target.hidden_size, target)
    if heads % kv_heads or head_dim % 2:
        fields.problems.append(
            f"num_attention_heads={heads}, num_key_value_heads={kv_heads}, head_dim={head_dim}: "
            "heads must divide and head_dim must be even"
        )
    return LayerShape(
        hidden=hidden,
        intermediate=fields.integer("intermediate_size"),
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        norm_eps=fields.number("rms_norm_eps", 1e-6),
        rates=_rotary_rates(fields, head_dim),
    )


def _rotary_rates(fields: Fields, head_dim: int) -> tuple[float, ...]:
    """Angles per position; plain, "linear" (positions / factor) or "llama3" scaling."""
    scaling = fields.config.get("rope_parameters") or fields.config.get("rope_scaling") or {}
    if not isinstance(scaling, Mapping):
        fields.problems.append(f"rope_scaling={scaling!r} is not a group of fields")
        scaling = {}
    theta = fields.number("rope_theta", 10000.0)
    if "rope_theta" in scaling:
        theta = fields.inside(scaling).number("rope_theta", 10000.0)
    rates = [theta ** (-2 * pair / head_dim) for pair in range(head_dim // 2)]
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    if kind == "default":
        return tuple(rates)
    inside = fields.inside(scaling)
    if kind == "linear":
        factor = inside.number("factor", 0.0)
        return tuple(rate / factor for rate in rates)
    if kind == "llama3":
        return _llama3(rates, inside)
    fields.problems.append(
        f"rope_scaling={dict(scaling)!r} is not supported, only the types default, linear, llama3"
    )
    return tuple(rates)


def _llama3(rates: Sequence[float], scaling: Fields) -> tuple[float, ...]:
    """Llama 3.1's: long waves slowed by `factor`, short ones kept, those between blended."""
    factor, low = scaling.number("factor", 8.0), scaling.number("low_freq_factor", 1.0)
    high = scaling.number("high_freq_factor", 4.0)
    trained = scaling.integer("original_max_position_embeddings", 8192)
    scaled = []
    for rate in rates:
        turns = trained * rate / (2 * math.pi)
        kept = min(1.0, max(0.0, (turns - low) / max(high - low, sys.float_info.min)))
        scaled.append(kept * rate + (1 - kept) * rate / factor)
    return tuple(scaled)
