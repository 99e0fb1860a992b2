"""How a config scales its rotary embedding: default, linear, llama3 or yarn."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from interlock.core.errors import CheckpointError

DEFAULT_THETA = 10000.0
COMMON_KEYS = {"rope_type", "type", "rope_theta", "partial_rotary_factor"}
LENGTH_KEYS = {"factor", "original_max_position_embeddings"}
KEYS = {
    "default": set[str](),
    "linear": {"factor"},
    "llama3": LENGTH_KEYS | {"low_freq_factor", "high_freq_factor"},
    "yarn": LENGTH_KEYS
    | {"attention_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim", "truncate"},
}
LENGTH_DEPENDENT = ("dynamic", "longrope", "su")


@dataclass(frozen=True)
class RopeScaling:
    """How frequencies are scaled; `kind` says which of the numbers are used."""

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
    table_factor: float = 1.0
    """Multiplies cos and sin (yarn's attention factor)."""

    def __post_init__(self) -> None:
        for name in ("theta", "factor", "table_factor"):
            value = getattr(self, name)
            if not 0 < value < math.inf:
                what = "rope_theta" if name == "theta" else f"rope {name}"
                raise CheckpointError(f"{what}={value!r} is not a finite number > 0")

    @property
    def softmax_factor(self) -> float:
        """What DeepSeek's MLA multiplies its softmax scale with: yarn's mscale squared."""
        if self.kind == "default" or not self.mscale_all_dim:
            return 1.0
        return _yarn_mscale(self.factor, self.mscale_all_dim) ** 2


def read_rope(config: Mapping[str, Any], max_positions: int) -> RopeScaling:
    """The scaling of `rope_parameters`, or of `rope_scaling` with `rope_theta` (older files).

    Raises CheckpointError for kinds whose angles depend on the sequence's length (rows computed
    early would be wrong later, so a cache cannot hold them), for unknown kinds, and for fields
    that would be left unused.
    """
    key = "rope_parameters" if config.get("rope_parameters") else "rope_scaling"
    stated = config.get(key) or {}
    if not isinstance(stated, Mapping):
        raise CheckpointError(f"{key}={stated!r} is not an object")
    kind = str(stated.get("rope_type") or stated.get("type") or "default")
    _check_kind(key, kind, stated, config)
    try:
        theta = float(stated.get("rope_theta") or config.get("rope_theta") or DEFAULT_THETA)
        original = int(
            config.get("original_max_position_embeddings")
            or stated.get("original_max_position_embeddings")
            or max_positions
        )
        if kind == "default":
            return RopeScaling(theta)
        factor = float(stated.get("factor") or max_positions / original)
        if kind == "linear":
            return RopeScaling(theta, kind, factor)
        if kind == "llama3":
            low, high = float(stated["low_freq_factor"]), float(stated["high_freq_factor"])
            return RopeScaling(theta, kind, factor, original, low, high)
        return _read_yarn(stated, theta, factor, original)
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        base = config.get("rope_theta")
        raise CheckpointError(
            f"{key} of kind {kind!r} (rope_theta={base!r}) is malformed or incomplete: {error!r}"
        ) from error


def _check_kind(key: str, kind: str, stated: Mapping[str, Any], config: Mapping[str, Any]) -> None:
    if kind in LENGTH_DEPENDENT:
        raise CheckpointError(
            f"{key} of kind {kind!r} is refused: its angles depend on the length of the sequence, "
            "so cached rows would become wrong as it grows"
        )
    if kind not in KEYS:
        raise CheckpointError(f"{key} of kind {kind!r} is not one of {', '.join(KEYS)}")
    unused = sorted(
        name for name in stated.keys() - KEYS[kind] - COMMON_KEYS if stated[name] is not None
    )
    if unused:
        raise CheckpointError(f"{key} of kind {kind!r} has fields that are not used: {unused}")
    partial = stated.get("partial_rotary_factor", config.get("partial_rotary_factor"))
    if partial not in (None, 1, 1.0):
        raise CheckpointError(f"partial_rotary_factor={partial!r} is not supported, only 1")


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
        beta_fast=float(stated.get("beta_fast") or 32),
        beta_slow=float(stated.get("beta_slow") or 1),
        truncate=bool(stated.get("truncate", True)),
        mscale_all_dim=float(all_dim or 0.0),
        table_factor=float(table_factor),
    )


def _yarn_mscale(factor: float, mscale: float) -> float:
    return 0.1 * mscale * math.log(factor) + 1.0 if factor > 1 else 1.0
