"""Candidates by the number of requests that decode together: vLLM's and TensorRT-LLM's tables."""

from bisect import bisect_right
from collections.abc import Sequence

from interlock.core.batch import Draft
from interlock.core.component import BuildContext
from interlock.core.draft_length import DraftLength, StepLoad
from interlock.plugins.speculative.lengths.options import ScheduleConfig


class Schedule(DraftLength):
    """The length at the largest number of requests that is not above those decoding."""

    def __init__(self, at: Sequence[tuple[int, int]]) -> None:
        self._requests = [requests for requests, _ in at]
        self._lengths = [length for _, length in at]

    def propose(self, num_drafts: int, decodes: int) -> int:
        """See DraftLength."""
        return min(num_drafts, self._at(decodes))

    def verify(self, drafts: Sequence[Draft], load: StepLoad) -> list[int]:
        """As the table says of the step they are in, which may hold more requests than before."""
        most = self._at(load.decodes)
        return [min(len(draft.tokens), most) for draft in drafts]

    def _at(self, decodes: int) -> int:
        return self._lengths[max(0, bisect_right(self._requests, decodes) - 1)]


def build(config: ScheduleConfig, _context: BuildContext) -> Schedule:
    """See Component."""
    return Schedule(config.at)
