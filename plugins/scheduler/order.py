"""Who goes first."""

from interlock.core.component import BuildContext
from interlock.core.request import RequestId
from interlock.core.scheduler import OrderPolicy, RequestView
from interlock.plugins.scheduler import ArrivalConfig, PriorityConfig


class ArrivalOrder(OrderPolicy):
    """First come, first served; ids settle ties."""

    def key(self, view: RequestView) -> tuple[float, RequestId]:
        """Scheduled arrival in seconds, then id."""
        return view.arrival_s, view.id


class PriorityOrder(OrderPolicy):
    """Highest priority first, then first come. Low priorities wait as long as higher ones come."""

    def key(self, view: RequestView) -> tuple[int, float, RequestId]:
        """Priority (a larger number goes first), scheduled arrival in seconds, id."""
        return -view.priority, view.arrival_s, view.id


def build_arrival(_config: ArrivalConfig, _context: BuildContext) -> ArrivalOrder:
    """The policy; it has no options."""
    return ArrivalOrder()


def build_priority(_config: PriorityConfig, _context: BuildContext) -> PriorityOrder:
    """The policy; it has no options."""
    return PriorityOrder()
