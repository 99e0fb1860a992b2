"""Whose pages are taken when memory is short."""

from collections.abc import Sequence

from interlock.core.component import BuildContext
from interlock.core.request import RequestId
from interlock.core.scheduler import RequestView, VictimPolicy
from interlock.plugins.scheduler import LatestConfig, LowestPriorityConfig


class LatestVictim(VictimPolicy):
    """The request admitted last: it has the least work to lose, and the order of service holds."""

    def choose(self, candidates: Sequence[RequestView]) -> RequestId:
        """See VictimPolicy."""
        return max(candidates, key=_admission).id


class LowestPriorityVictim(VictimPolicy):
    """The request with the lowest priority; of equals the one admitted last."""

    def choose(self, candidates: Sequence[RequestView]) -> RequestId:
        """See VictimPolicy."""
        return max(candidates, key=lambda view: (-view.priority, _admission(view))).id


def _admission(view: RequestView) -> int:
    assert view.admission is not None, "a request that holds pages was admitted"
    return view.admission


def build_latest(_config: LatestConfig, _context: BuildContext) -> LatestVictim:
    """The policy; it has no options."""
    return LatestVictim()


def build_lowest_priority(
    _config: LowestPriorityConfig, _context: BuildContext
) -> LowestPriorityVictim:
    """The policy; it has no options."""
    return LowestPriorityVictim()
