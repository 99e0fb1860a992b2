"""Which layers of a config see a window: layer_types, or a pattern where a file has none."""

from typing import Literal

from interlock.plugins.models.fields import Fields

LayerKind = Literal["full_attention", "sliding_attention"]
FULL: LayerKind = "full_attention"
SLIDING: LayerKind = "sliding_attention"


def layer_kinds(fields: Fields, layers: int, every: int) -> tuple[LayerKind, ...]:
    """Each layer's kind: as `layer_types` says; without it every `every`-th layer sees all.

    Anything else in `layer_types` is a problem of the config.
    """
    stated = fields.config.get("layer_types")
    if stated is None:
        return tuple(SLIDING if (layer + 1) % every else FULL for layer in range(layers))
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
