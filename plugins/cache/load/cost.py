"""Load as many pages as bring the first token soonest."""

from interlock.core.component import BuildContext
from interlock.core.load_policy import LoadOffer
from interlock.plugins.cache.load.estimates import without
from interlock.plugins.cache.load.measured import MeasuredPolicy
from interlock.plugins.cache.tiering import CostConfig

FIRST_PROBE = 32
"""Prompts computed in a row after which one page is loaded to see whether loads are faster now;
each probe that changes nothing doubles the number."""


class ByCost(MeasuredPolicy):
    """Estimates, for every number of pages worth a thought, when the first token would come.

    The load runs beside what other prompts compute first; what is computed afterwards keeps those
    that wait behind. Among the numbers with which the latency limit is met, or among all if there
    is none, the cheapest is chosen. A tier of which nothing is known is tried.
    """

    def __init__(self) -> None:
        super().__init__()
        self._computed_in_a_row, self._probe_after = 0, FIRST_PROBE

    def pages(self, offer: LoadOffer) -> int:
        """See MeasuredPolicy."""
        options = _worth_a_thought(offer, self._most_in_time(offer))
        costs = [self._cost(offer, pages) for pages in options]
        in_time = [(cost, p) for (cost, met), p in zip(costs, options, strict=True) if met]
        cheapest = min(in_time or [(cost, p) for (cost, _), p in zip(costs, options, strict=True)])
        return self._probed(cheapest[1])

    def _most_in_time(self, offer: LoadOffer) -> int:
        """The most pages that are loaded before the load is given up, by bisection."""
        low, high = 0, len(offer.tiers)
        while low < high:
            middle = (low + high + 1) // 2
            seconds = self.estimates.load_s(offer.tiers[:middle], offer.queued)
            if seconds is None or seconds <= offer.timeout_s:
                low = middle
            else:
                high = middle - 1
        return low

    def _cost(self, offer: LoadOffer, pages: int) -> tuple[float, bool]:
        """Seconds, its own and those behind it, and whether the limits are met."""
        estimates = self.estimates
        compute_s = estimates.compute_s(without(offer, pages), offer.budget_tokens)
        backlog_s = estimates.compute_s(offer.backlog_tokens, offer.budget_tokens)
        load_s = estimates.load_s(offer.tiers[:pages], offer.queued) if pages else 0.0
        if compute_s is None or backlog_s is None or load_s is None:
            return -float(pages), True  # not measured yet: to be tried
        first_s = max(load_s, backlog_s) + compute_s
        met = offer.limit_s is None or offer.waited_s + first_s <= offer.limit_s
        return first_s + offer.behind * compute_s, met

    def _probed(self, pages: int) -> int:
        if pages:
            self._computed_in_a_row, self._probe_after = 0, FIRST_PROBE
            return pages
        self._computed_in_a_row += 1
        if self._computed_in_a_row < self._probe_after:
            return 0
        self._computed_in_a_row = 0
        self._probe_after *= 2
        return 1


def _worth_a_thought(offer: LoadOffer, count: int) -> list[int]:
    """Nothing, `count`, where the tier changes, and where a step less is needed for the rest."""
    options = {0, count}
    options.update(n for n in range(1, count) if offer.tiers[n] != offer.tiers[n - 1])
    for tokens in range(offer.budget_tokens, offer.pending_tokens, offer.budget_tokens):
        pages = -(-(offer.pending_tokens - tokens) // offer.page_size)
        if 0 < pages < count:
            options.add(pages)
    return sorted(options)


def build(_config: CostConfig, _context: BuildContext) -> ByCost:
    """See Component."""
    return ByCost()
