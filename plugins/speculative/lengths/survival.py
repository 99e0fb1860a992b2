"""The chance that a candidate and all on the way to it are accepted."""

from collections.abc import Sequence

from interlock.core.batch import Draft


def survivals(draft: Draft, chances: Sequence[float]) -> tuple[float, ...]:
    """Of every candidate, the product of `chances` from the first one on its path to itself."""
    found: list[float] = []
    for place, chance in enumerate(chances):
        parent = place - 1 if draft.parents is None else draft.parents[place]
        found.append(chance * (found[parent] if parent >= 0 else 1.0))
    return tuple(found)
