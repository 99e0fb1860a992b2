"""The same number of candidates for every request and step."""

from interlock.core.component import BuildContext
from interlock.core.draft_length import DraftLength
from interlock.plugins.speculative.lengths.options import FixedLengthConfig


class FixedLength(DraftLength):
    """Up to `num` candidates, or as many as the drafter makes."""

    adapts = False

    def __init__(self, num: int | None) -> None:
        self._num = num

    def propose(self, num_drafts: int, decodes: int) -> int:
        """See DraftLength."""
        return num_drafts if self._num is None else min(self._num, num_drafts)


def build(config: FixedLengthConfig, _context: BuildContext) -> FixedLength:
    """See Component."""
    return FixedLength(config.num)
