"""How a config scales its rotary embedding, and how far that is exact for cached rows."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from interlock.core.errors import CheckpointError
from interlock.plugins.models.fields import number_in

DEFAULT_THETA = 10000.0
COMMON_KEYS = {"rope_type", "type", "rope_theta", "partial_rotary_factor"}
LENGTH_KEYS = {"factor", "original_max_position_embeddings"}
KEYS = {
    "default": set[str](),
    "linear": {"factor"},
    "llama3": LENGTH_KEYS | {"low_freq_factor", "high_freq_factor"},
    "yarn": LENGTH_KEYS
    | {"attention_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim", "truncate"},
    "dynamic": {"factor"},
    "longrope": LENGTH_KEYS | {"attention_factor", "short_factor", "long_factor"},
}
LENGTH_DEPENDENT = ("dynamic", "longrope")
"""Kinds whose angles depend on the sequence's length beyond the original one."""


@dataclass(frozen=True)
class RopeScaling:
    """How frequencies are scaled; `kind` says which of the numbers are used.

    "dynamic" and "longrope" are scaled as within `original_positions`.
    """

    theta: float = DEFAULT_THETA
    kind: str = "default"
    factor: float = 1.0
    original_positions: int = 0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True
    mscale_all_dim: float = 0.0
    short_factors: tuple[float, ...] = ()
    table_factor: float = 1.0
    """Multiplies cos and sin (the attention factor of yarn and longrope)."""

    def __post_init__(self) -> None:
        for name in ("theta", "factor", "table_factor"):
            value = getattr(self, name)
            if not 0 < value < math.inf:
                what = "rope_theta" if name == "theta" else f"rope {name}"
                raise CheckpointError(f"{what}={value!r} is not a finite number > 0")
        if self.kind == "yarn" and self.theta <= 1:
            raise CheckpointError(f"rope_theta={self.theta!r} is not > 1, which yarn needs")

    @property
    def limit(self) -> str | None:
        """Why positions from `original_positions` on cannot be served; None if they can."""
        if self.kind not in LENGTH_DEPENDENT:
            return None
        return (
            f"rotary scaling {self.kind!r} is exact within the original {self.original_positions} "
            "positions; beyond them its angles depend on the length of the sequence, so cached "
            "rows would become wrong as it grows"
        )

    def check(self, rotated: int) -> None:
        """Raise CheckpointError unless it has a factor for each pair of `rotated` entries."""
        if self.kind == "longrope" and len(self.short_factors) != rotated // 2:
            raise CheckpointError(
                f"short_factor has {len(self.short_factors)} numbers, but {rotated // 2} pairs "
                "of a head are rotated"
            )

    @property
    def softmax_factor(self) -> float:
        """What DeepSeek's MLA multiplies its softmax scale with: yarn's mscale squared."""
        if self.kind == "default" or not self.mscale_all_dim:
            return 1.0
        return _yarn_mscale(self.factor, self.mscale_all_dim) ** 2


def read_rope(
    config: Mapping[str, Any],
    max_positions: int,
    theta: float = DEFAULT_THETA,
    *,
    partial: bool = False,
    capped: bool = False,
) -> RopeScaling:
    """The scaling of `rope_parameters`, or of `rope_scaling` with `rope_theta` (older files).

    `max_positions` and `theta` hold where the config states no original length and no rope_theta.
    `partial`: the family reads partial_rotary_factor itself, else only 1 is allowed. `capped`: it
    serves no more than `exact_positions`, else kinds that depend on the length are refused.
    Raises CheckpointError for unknown kinds and for fields that would be left unused.
    """
    key = "rope_parameters" if config.get("rope_parameters") else "rope_scaling"
    stated = config.get(key) or {}
    if not isinstance(stated, Mapping):
        raise CheckpointError(f"{key}={stated!r} is not an object")
    kind = str(stated.get("rope_type") or stated.get("type") or "default")
    _check_kind(key, kind, stated)
    if kind in LENGTH_DEPENDENT and not capped:
        raise CheckpointError(
            f"{key} of kind {kind!r} is refused: its angles depend on the length of the sequence, "
            "so cached rows would become wrong as it grows"
        )
    fraction = rotary_fraction(config)
    if not partial and fraction not in (None, 1, 1.0):
        raise CheckpointError(f"partial_rotary_factor={fraction!r} is not supported, only 1")
    try:
        theta = number_in(stated, "rope_theta", number_in(config, "rope_theta", theta))
        if kind == "default":
            return RopeScaling(theta)
        return _scaled(kind, stated, config, theta, max_positions)
    except (KeyError, TypeError, ValueError, ArithmeticError) as error:
        base = config.get("rope_theta")
        raise CheckpointError(
            f"{key} of kind {kind!r} (rope_theta={base!r}) is malformed or incomplete: {error!r}"
        ) from error


def read_ropes(
    config: Mapping[str, Any], max_positions: int, thetas: Mapping[str, float]
) -> dict[str, RopeScaling] | None:
    """The scaling of each layer type of `thetas`, which are the bases of those that state none.

    For families that serve no more than `exact_positions`. None where the config has no
    `rope_parameters` (older files): the family knows what a single scaling is for. Raises
    CheckpointError, naming the layer type.
    """
    stated = config.get("rope_parameters")
    if not stated:
        return None
    if not isinstance(stated, Mapping) or not stated.keys() <= thetas.keys():
        raise CheckpointError(
            f"rope_parameters={stated!r} is not an object of {', '.join(thetas)}, whose rotations "
            "differ"
        )
    if config.get("rope_scaling"):
        raise CheckpointError("rope_parameters and rope_scaling are both given: keep the first")
    found = {}
    for kind, theta in thetas.items():
        own = {"rope_theta": theta, "rope_parameters": stated.get(kind)}
        try:
            found[kind] = read_rope({**config, **own}, max_positions, capped=True)
        except CheckpointError as error:
            raise CheckpointError(f"{kind}: {error}") from error
    return found


def rotary_fraction(config: Mapping[str, Any]) -> float | None:
    """`partial_rotary_factor`, wherever it is stated; raises CheckpointError outside (0, 1]."""
    stated = config.get("rope_parameters") or config.get("rope_scaling") or {}
    fraction = config.get("partial_rotary_factor")
    if isinstance(stated, Mapping):
        fraction = stated.get("partial_rotary_factor", fraction)
    if fraction is None:
        return None
    if type(fraction) not in (int, float) or not 0 < fraction <= 1:
        raise CheckpointError(f"partial_rotary_factor={fraction!r} is not a number in (0, 1]")
    return float(fraction)


def exact_positions(stated: int, ropes: Iterable[RopeScaling]) -> tuple[int, str]:
    """How many positions can be served, and why no more if that is less than what is stated.

    Yarn serves its factor times the original length, also where max_position_embeddings still is
    the original one, as Qwen's cards tell users to configure it.
    """
    ropes = list(ropes)
    limits = [(rope.original_positions, rope.limit) for rope in ropes if rope.limit is not None]
    if limits:
        most, reason = min(limits)
        return (most, reason) if most <= stated else (stated, "")
    scaled = [round(r.original_positions * r.factor) for r in ropes if r.kind == "yarn"]
    return max([stated, *scaled]), ""


def _scaled(
    kind: str, stated: Mapping[str, Any], config: Mapping[str, Any], theta: float, most: int
) -> RopeScaling:
    length = "original_max_position_embeddings"
    original = int(number_in(config, length, number_in(stated, length, most)))
    if original < 1:
        raise ValueError(f"{length}={original} is not >= 1")
    if kind == "longrope":
        return _read_longrope(stated, theta, most, original)
    if kind == "dynamic":
        number_in(stated, "factor")
        return RopeScaling(theta, kind, original_positions=most)
    if kind == "linear":
        return RopeScaling(theta, kind, number_in(stated, "factor"))
    factor = number_in(stated, "factor", most / original)
    if kind == "llama3":
        low, high = number_in(stated, "low_freq_factor"), number_in(stated, "high_freq_factor")
        if not 0 < low < high < math.inf:
            raise ValueError(f"low_freq_factor={low} and high_freq_factor={high} do not grow")
        return RopeScaling(theta, kind, factor, original, low, high)
    return _read_yarn(stated, theta, factor, original)


def _check_kind(key: str, kind: str, stated: Mapping[str, Any]) -> None:
    if kind not in KEYS:
        raise CheckpointError(f"{key} of kind {kind!r} is not one of {', '.join(KEYS)}")
    unused = sorted(
        name for name in stated.keys() - KEYS[kind] - COMMON_KEYS if stated[name] is not None
    )
    if unused:
        raise CheckpointError(f"{key} of kind {kind!r} has fields that are not used: {unused}")


def _read_longrope(
    stated: Mapping[str, Any], theta: float, most: int, original: int
) -> RopeScaling:
    """LongRoPE (arXiv 2402.13753, section 3.3) within the original length: the short factors."""
    factor = number_in(stated, "factor", most / original)
    table_factor = stated.get("attention_factor")
    if table_factor is None:
        grown = math.log(factor) / math.log(original) if factor > 1 else 0.0
        table_factor = math.sqrt(1 + grown)
    short = tuple(float(one) for one in stated["short_factor"])
    if not all(0 < one < math.inf for one in short):
        raise ValueError("short_factor holds a number that is not finite and > 0")
    return RopeScaling(
        theta, "longrope", factor, original, short_factors=short, table_factor=float(table_factor)
    )


def _read_yarn(
    stated: Mapping[str, Any], theta: float, factor: float, original: int
) -> RopeScaling:
    mscale, all_dim = stated.get("mscale"), stated.get("mscale_all_dim")
    table_factor = stated.get("attention_factor")
    if table_factor is None:
        table_factor = _yarn_mscale(factor, 1.0)
        if mscale and all_dim:
            table_factor = _yarn_mscale(factor, mscale) / _yarn_mscale(factor, all_dim)
    return RopeScaling(
        theta,
        "yarn",
        factor,
        original,
        beta_fast=number_in(stated, "beta_fast", 32),
        beta_slow=number_in(stated, "beta_slow", 1),
        truncate=bool(stated.get("truncate", True)),
        mscale_all_dim=float(all_dim or 0.0),
        table_factor=float(table_factor),
    )


def _yarn_mscale(factor: float, mscale: float) -> float:
    return 0.1 * mscale * math.log(factor) + 1.0 if factor > 1 else 1.0
