"""Each draft up to its first doubtful candidate (DSpark's single-request mode; SpecDec++).

With of=path the chance is the product of the estimates on the way: SpecDec++ stops where one minus
it passes h, about 0.3. With of=candidate it is the estimate itself. An estimate is made before its
candidate is drawn, so whether a candidate is verified never depends on which token it is.
"""

from collections.abc import Sequence

from interlock.core.batch import Draft
from interlock.core.component import BuildContext
from interlock.core.draft_length import DraftLength, StepLoad
from interlock.plugins.speculative.lengths.options import ThresholdConfig
from interlock.plugins.speculative.lengths.survival import survivals


class Threshold(DraftLength):
    """Cuts before the first candidate whose chance is below `least`."""

    def __init__(self, least: float, path: bool) -> None:
        self._least = least
        self._path = path

    def propose(self, num_drafts: int, decodes: int) -> int:
        """All: what an estimate says is known once a candidate could be drawn."""
        return num_drafts

    def verify(self, drafts: Sequence[Draft], load: StepLoad) -> list[int]:
        """See DraftLength. A draft without estimates is verified whole."""
        return [self._kept(draft) for draft in drafts]

    def _kept(self, draft: Draft) -> int:
        chances = draft.confidence
        if self._path:
            chances = survivals(draft, chances)
        doubtful = (place for place, chance in enumerate(chances) if chance < self._least)
        return next(doubtful, len(draft.tokens))


def build(config: ThresholdConfig, _context: BuildContext) -> Threshold:
    """See Component."""
    return Threshold(config.least, config.of == "path")
