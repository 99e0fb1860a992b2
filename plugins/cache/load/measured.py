"""What every load policy does: keep estimates, count its choices, and regret them."""

from abc import abstractmethod
from collections.abc import Mapping, Sequence

from interlock.core.load_policy import LoadOffer, LoadPolicy
from interlock.core.transfers import Moved
from interlock.plugins.cache.load.estimates import Estimates, without


class MeasuredPolicy(LoadPolicy):
    """A policy over estimates.

    Regret is what a choice took longer than its opposite would have, by the estimates of the
    moment when that is known: a load's real duration against computing its pages, and computing
    them against a load, where the former was longer.
    """

    def __init__(self) -> None:
        self.estimates = Estimates()
        self._offer: LoadOffer | None = None
        self._loads = self._splits = self._computes = 0
        self._regret_load_s = self._regret_compute_s = 0.0
        self._budget_tokens = self._page_size = 1

    @abstractmethod
    def pages(self, offer: LoadOffer) -> int:
        """How many pages to load."""

    def choose(self, offer: LoadOffer) -> int:
        """See LoadPolicy."""
        self._budget_tokens, self._page_size = offer.budget_tokens, offer.page_size
        pages = self.pages(offer)
        self._loads += pages == len(offer.tiers)
        self._splits += 0 < pages < len(offer.tiers)
        self._computes += pages == 0
        if pages == 0:
            self._regret_compute_s += self._lost_by_computing(offer)
        return pages

    def _lost_by_computing(self, offer: LoadOffer) -> float:
        estimates, count = self.estimates, len(offer.tiers)
        load_s = estimates.load_s(offer.tiers, offer.queued)
        whole_s = estimates.compute_s(offer.pending_tokens, offer.budget_tokens)
        rest_s = estimates.compute_s(without(offer, count), offer.budget_tokens)
        if load_s is None or whole_s is None or rest_s is None:
            return 0.0
        return max(0.0, whole_s - rest_s - load_s)

    def loaded(self, wanted: Sequence[int], moved: Sequence[Moved], seconds: float) -> None:
        """See LoadPolicy."""
        self.estimates.loaded(moved)
        given = sum(pages for _, pages, _ in moved)
        computed_s = self.estimates.compute_s(given * self._page_size, self._budget_tokens)
        if computed_s is not None:
            self._regret_load_s += max(0.0, seconds - computed_s)

    def saved(self, moved: Sequence[Moved]) -> None:
        """See LoadPolicy."""
        self.estimates.saved(moved)

    def stepped(self, tokens: int, seconds: float) -> None:
        """See LoadPolicy."""
        self.estimates.stepped(tokens, seconds)

    def facts(self) -> Mapping[str, float]:
        """See LoadPolicy."""
        return {
            "loads": self._loads,
            "splits": self._splits,
            "computes": self._computes,
            "regret_of_loading_s": round(self._regret_load_s, 6),
            "regret_of_computing_s": round(self._regret_compute_s, 6),
        }
