"""Correction for the number of comparisons that one study makes."""

from collections.abc import Sequence


def holm(p: Sequence[float]) -> list[float]:
    """Adjusted p values, in the order given.

    Holm, "A simple sequentially rejective multiple test procedure", Scand. J. Statist. 6 (1979):
    those at or below alpha hold the chance of any false one at alpha, however they depend on each
    other (all cells of a study share one baseline).
    """
    adjusted = [1.0] * len(p)
    largest = 0.0
    for rank, place in enumerate(sorted(range(len(p)), key=p.__getitem__)):
        largest = max(largest, min(1.0, (len(p) - rank) * p[place]))
        adjusted[place] = largest
    return adjusted
