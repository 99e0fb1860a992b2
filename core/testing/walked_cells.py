"""Which cells an exactness walk runs: drawn at random from the product of all choices."""

import math
import random
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from interlock.core.capabilities import SamplesDrafts
from interlock.core.testing.coverage import Cell, pairwise
from interlock.core.testing.exactness import MODELS, SAMPLED, VERIFIER, Walk

DRAWN_FOR_A_PAIR = 20
"""Cells are drawn until the rarest pair of choices is expected so often among the accepted."""
NO_DRAFTS_SHARE = 0.2
"""Of drawn cells: only without drafts can beams be searched."""
MOST_TRIED = 97
"""Cells of a model that verifiers are put into, at most (they are spread over all there are)."""


class Drawn(NamedTuple):
    """Cells to run: all or some of those that the resolver accepted. Why it refused others."""

    cells: list[Cell]
    accepted: int
    refused: Counter[str]

    @property
    def considered(self) -> int:
        """How many cells were drawn."""
        return self.accepted + self.refused.total()


def draw(walk: Walk, count: int, seed: int = 0) -> Drawn:
    """So many accepted cells, drawn with this seed."""
    source, factors = random.Random(seed), walk.factors()
    drafts = [name for name in factors["spec"] if name != "none"]
    accepted, refused = list[Cell](), Counter[str]()
    while len(accepted) < count:
        cell = {name: source.choice(levels) for name, levels in factors.items()}
        cell["spec"] = "none" if source.random() < NO_DRAFTS_SHARE else source.choice(drafts)
        reasons = walk.refusals(cell)
        refused.update(reasons[:1])
        if not reasons:
            accepted.append(cell)
    return Drawn(accepted, count, refused)


def all_pairs(walk: Walk) -> Drawn:
    """Accepted cells with every pair of choices that occurs among those drawn."""
    most, next_most = sorted(map(len, walk.factors().values()))[:-3:-1]
    drawn = draw(walk, DRAWN_FOR_A_PAIR * most * next_most)
    return drawn._replace(cells=pairwise(drawn.cells))


def product_size(walk: Walk) -> int:
    """How many cells there are, with those that the resolver refuses."""
    return math.prod(map(len, walk.factors().values()))


def verifier_cells(walk: Walk, chosen: Sequence[Cell], models: int) -> list[Cell]:
    """Cells for every verifier, on so many models: of `chosen`, with a drafter that draws.

    It draws trees where the verifier accepts them, else chains.
    """
    return [
        cell
        for turn, verifier in enumerate(walk.registry.names(VERIFIER))
        for kind in [MODELS[(turn + i) % len(MODELS)] for i in range(models)]
        for cell in _with_verifier(walk, chosen, verifier, kind, SAMPLED, turn)[:1]
    ]


def drawing_cells(walk: Walk, chosen: Sequence[Cell]) -> list[Cell]:
    """Cells of `chosen` for every verifier, model, and drafter whose candidates are drawn."""
    drawing = [
        name
        for name, options in walk.drafts.items()
        if SamplesDrafts() in walk.registry.components["spec", options.name].provides(options, None)
    ]
    return [
        cell
        for turn, verifier in enumerate(walk.registry.names(VERIFIER))
        for kind in MODELS
        for cell in _with_verifier(walk, chosen, verifier, kind, drawing, turn)
    ]


def _with_verifier(
    walk: Walk, chosen: Sequence[Cell], verifier: str, kind: str, specs: Sequence[str], turn: int
) -> list[Cell]:
    """For each of these drafters that goes with it, a cell of `chosen` with both on this model."""
    own = [cell for cell in chosen if cell["model"] == kind]
    own = own[:: max(1, len(own) // MOST_TRIED)]
    found: list[Cell] = []
    for number, spec in enumerate(specs):
        cells = [{**cell, "spec": spec, VERIFIER: verifier} for cell in own]
        accepted = [cell for cell in cells if not walk.refusals(cell)]
        found += accepted[(turn + number) % max(1, len(accepted)) :][:1]
    return found
