"""Which layers of a config see a window: the ways in which files say it."""

from collections.abc import Sequence
from typing import Literal

from interlock.plugins.models.fields import Fields

LayerKind = Literal["full_attention", "sliding_attention"]
FULL: LayerKind = "full_attention"
SLIDING: LayerKind = "sliding_attention"


def layer_kinds(fields: Fields, layers: int, every: int) -> tuple[LayerKind, ...]:
    """Each layer's kind: as `layer_types` says; without it every `every`-th layer sees all."""
    return kinds_or(fields, [SLIDING if (layer + 1) % every else FULL for layer in range(layers)])


def kinds_or(fields: Fields, usual: Sequence[LayerKind]) -> tuple[LayerKind, ...]:
    """Each layer's kind: as `layer_types` says; without it as is `usual` in this family.

    Anything else in `layer_types` is a problem of the config.
    """
    stated, layers = fields.config.get("layer_types"), len(usual)
    if stated is None:
        return tuple(usual)
    if (
        isinstance(stated, list)
        and len(stated) == layers
        and all(kind in (FULL, SLIDING) for kind in stated)
    ):
        return tuple(stated)
    fields.require(False, f"layer_types={stated!r} is not a list of {layers} of {FULL}, {SLIDING}")
    return (FULL,) * layers


def windows_of(
    fields: Fields, kinds: tuple[LayerKind, ...], default: int
) -> tuple[int | None, ...]:
    """Each layer's window: `sliding_window` tokens for sliding layers, None for the others.

    An absent `sliding_window` is `default`; null is a problem if a layer needs one.
    """
    if SLIDING not in kinds:
        return (None,) * len(kinds)
    missing = "sliding_window" in fields.config and fields.config["sliding_window"] is None
    fields.require(not missing, f"sliding_window=null, but layers of kind {SLIDING} need one")
    window = fields.integer("sliding_window", default)
    return tuple(window if kind == SLIDING else None for kind in kinds)


def stated_window(fields: Fields) -> int | None:
    """`sliding_window`, which may be null: one for all layers (Mistral)."""
    if fields.config.get("sliding_window") is None:
        return None
    return fields.integer("sliding_window")


def switched_windows(fields: Fields, usual: Sequence[LayerKind]) -> tuple[int | None, ...]:
    """Each layer's window, where `use_sliding_window` says whether there are any (Qwen)."""
    kinds = kinds_or(fields, usual)
    if fields.flag("use_sliding_window", False):
        return windows_of(fields, kinds, default=4096)
    if fields.config.get("layer_types") is not None:
        fields.require(
            SLIDING not in kinds, f"layer_types has {SLIDING}, but use_sliding_window is false"
        )
    return (None,) * len(kinds)
