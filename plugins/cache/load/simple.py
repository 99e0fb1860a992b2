"""The two ends: load everything, load nothing; and no store at all."""

from interlock.core.component import BuildContext
from interlock.core.load_policy import LoadOffer
from interlock.plugins.cache.load.measured import MeasuredPolicy
from interlock.plugins.cache.tiering import AlwaysConfig, NeverConfig, NoTierConfig


class Always(MeasuredPolicy):
    """Loads whatever a store has."""

    def pages(self, offer: LoadOffer) -> int:
        """All."""
        return len(offer.tiers)


class Never(MeasuredPolicy):
    """Computes everything."""

    def pages(self, offer: LoadOffer) -> int:
        """None."""
        return 0


def always(_config: AlwaysConfig, _context: BuildContext) -> Always:
    """See Component."""
    return Always()


def never(_config: NeverConfig, _context: BuildContext) -> Never:
    """See Component."""
    return Never()


def no_tier(_config: NoTierConfig, _context: BuildContext) -> None:
    """Nothing."""
