"""What a run's manifest says of its components: which served it with what options, which acted."""

import json
from collections.abc import Mapping
from typing import Any

from interlock.core.seams import SEAMS

NOT_VARIED = {"seed", "progress", "executor.noise_run"}
"""What differs between runs of one composition."""


def chosen(manifest: Mapping[str, Any]) -> dict[str, str]:
    """Seam -> the component and its options in one text; other settings by their own key."""
    by_seam: dict[str, dict[str, Any]] = {}
    found: dict[str, str] = {}
    for key, value in _leaves(manifest.get("config", {})):
        if key in NOT_VARIED:
            continue
        parts = key.split(".")
        prefixes = ["/".join(parts[:length]) for length in range(len(parts) - 1, 0, -1)]
        seam = next((prefix for prefix in prefixes if prefix in SEAMS), None)
        if seam is None:
            found[key] = json.dumps(value)
        else:
            by_seam.setdefault(seam, {})[key] = value
    return found | {seam: json.dumps(of, sort_keys=True) for seam, of in by_seam.items()}


def acted(manifest: Mapping[str, Any]) -> tuple[str, ...]:
    """The seams of which a counter is above zero."""
    counters = manifest.get("counters", {})
    return tuple(seam for seam in SEAMS if any(map(_counts, counters.get(seam, {}).values())))


def _counts(value: Any) -> bool:
    return isinstance(value, int | float) and value > 0


def _leaves(value: Any, key: str = "") -> list[tuple[str, Any]]:
    """Every setting by its dotted key."""
    if not isinstance(value, Mapping) or not value:
        return [(key, value)] if key else []
    nested = (_leaves(item, f"{key}.{name}" if key else name) for name, item in value.items())
    return [leaf for found in nested for leaf in found]
