"""When a waiting request may start."""

import math

from interlock.core.component import BuildContext
from interlock.core.scheduler import AdmissionPolicy, Load, RequestView
from interlock.plugins.scheduler import WhenItFitsConfig


class WhenItFits(AdmissionPolicy):
    """Admits a request whose pages fit and leave `reserve_share` of all pages free.

    The reserve lets running requests grow before anyone must be preempted. It does not hold while
    nothing runs: whatever fits the empty engine starts.
    """

    def __init__(self, config: WhenItFitsConfig) -> None:
        self._reserve_share = config.reserve_share

    def admit(self, view: RequestView, load: Load) -> bool:
        """See AdmissionPolicy. O(1)."""
        reserve = math.ceil(self._reserve_share * load.total_pages) if load.running else 0
        return load.needed_pages + reserve <= load.free_pages


def build(config: WhenItFitsConfig, _context: BuildContext) -> WhenItFits:
    """The policy with this reserve."""
    return WhenItFits(config)
