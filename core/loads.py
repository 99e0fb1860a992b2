"""Waiting requests whose prefix goes on in a tier: who loads, who waits, and who gives back.

A request is looked at once, when it could start: it asks the tiers, its policy decides, and while
its pages come others may go before it. What was loaded is held until it starts, unless somebody
needs the room more: then the last to have loaded gives back first, so that two requests that each
hold a part can never wait for each other.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from enum import Enum

from interlock.core.kv_cache import KVCache, Match
from interlock.core.live import Live
from interlock.core.load_policy import LoadOffer, LoadPolicy
from interlock.core.prefix_index import PrefixKey
from interlock.core.request import RequestId
from interlock.core.samples import usable_prefix
from interlock.core.tier import Key, KVTier
from interlock.core.tiered_pages import Hold, Load, TieredPages
from interlock.core.transfers import Moved, Transfer, Transfers

MOST_TURNS = 3
"""Times to ask again at once because the device has changed since the last answer."""


class Stage(Enum):
    """Where a waiting request is with its pages in tiers."""

    FINDING = "its keys are looked up"
    CHOSEN = "some of its pages are to be loaded"
    LOADING = "they are on their way"
    JOINED = "somebody else loads its next page"
    SETTLED = "it can start with what is on the device"


@dataclass(slots=True, eq=False)
class Wait:
    """One waiting request's dealings with tiers. `until_s` is when it goes on without them."""

    stage: Stage
    until_s: float
    keys: list[Key] = field(default_factory=list)
    found: Transfer | None = None
    load: Load | None = None
    hold: Hold | None = None


class Loads:
    """Every waiting request that asked its tiers."""

    def __init__(
        self, cache: KVCache, tiers: TieredPages, policy: LoadPolicy, budget_tokens: int,
        stores: Sequence[KVTier], limit_s: float | None,
    ) -> None:  # fmt: skip
        """`stores` are those of `tiers`; a first token should come `limit_s` after the arrival."""
        self.policy = policy
        self._cache, self._tiers = cache, tiers
        self._budget_tokens, self._limit_s = budget_tokens, limit_s
        self.stores = tuple(stores)
        self._queued = [0] * len(stores)
        self._waits: dict[RequestId, Wait] = {}
        cache.tiers, tiers.give_back, tiers.saved = tiers, self.give_back, policy.saved

    # Once a step --------------------------------------------------------------------------------

    def collect(self, now_s: float) -> None:
        """Index what has arrived, and let those who waited for it go on."""
        self._cache.now_s = now_s
        for load, hold in self._tiers.finished(now_s):
            self._count(load, -1)
            waits = [w for w in self._waits.values() if w.load is load]
            for wait in waits:
                if wait.stage is Stage.LOADING:
                    wait.hold, hold = hold, None
                    self._over(load, now_s, load.transfer.moved)
                if wait.stage is Stage.JOINED and load.transfer.done:
                    wait.stage = Stage.FINDING  # to be looked at again
                    wait.found = None
                else:
                    wait.stage = Stage.SETTLED
                wait.load = None
            if hold is not None:
                self._tiers.let_go(hold)

    def ready(self, live: Live, now_s: float, backlog_tokens: int, behind: int) -> bool:
        """Whether a waiting request may start with what is on the device now.

        False: its pages are on their way; it is no reason for others to wait.
        """
        wait = self._waits.get(live.id)
        if wait is None:
            wait = self._waits[live.id] = Wait(Stage.FINDING, now_s + self._tiers.timeout_s)
        if wait.stage is not Stage.SETTLED and now_s >= wait.until_s:
            self._give_up(wait, now_s)
        for _ in range(MOST_TURNS):
            if wait.stage is Stage.FINDING:
                self._find(live, wait, now_s, backlog_tokens, behind)
            if wait.stage is Stage.CHOSEN:
                self._load(live, wait, now_s)
            if wait.stage is not Stage.FINDING or wait.found is not None:
                break
        else:
            wait.stage = Stage.SETTLED
        return wait.stage is Stage.SETTLED

    @property
    def under_way(self) -> bool:
        """True while some copy is."""
        return bool(self._tiers.under_way)

    @property
    def transfers(self) -> Transfers:
        """What runs the copies."""
        return self._tiers.transfers

    def close(self) -> None:
        """End the copies, after what they are doing, and the tiers."""
        self.transfers.close(self._tiers.timeout_s)
        for store in self.stores:
            store.close()

    def deadline_s(self) -> float:
        """When the first of those who wait for tiers goes on without them."""
        waiting = (w.until_s for w in self._waits.values() if w.stage is not Stage.SETTLED)
        return min(waiting, default=float("inf"))

    # Stages -------------------------------------------------------------------------------------

    def _beyond(self, live: Live) -> tuple[Match, PrefixKey] | None:
        """What the device has of a request, and the rows that it lacks."""
        match = usable_prefix(live, self._cache)
        usable = live.sequence.full_pages(live.sequence.length - 1)
        if live.scores_prompt or match.source is not None or usable <= len(match.pages):
            return None
        return match, PrefixKey(live.salt, live.sequence.units(len(match.pages), usable))

    def _find(
        self, live: Live, wait: Wait, now_s: float, backlog_tokens: int, behind: int
    ) -> None:  # fmt: skip
        found = wait.found
        if found is None:
            if (beyond := self._beyond(live)) is None:
                wait.stage = Stage.SETTLED
                return
            match, key = beyond
            wait.keys = self._tiers.keys(key, match.last)
            if (other := self._tiers.loading.get(wait.keys[0])) is not None:
                wait.stage, wait.load = Stage.JOINED, other
                return
            found = wait.found = self._tiers.find(wait.keys)
        if not found.finished:
            return
        wait.stage = Stage.SETTLED
        if found.where:
            offer = self._offer(live, found, now_s, backlog_tokens, behind)
            wait.keys = wait.keys[: self.policy.choose(offer)]
            if wait.keys:
                wait.stage = Stage.CHOSEN

    def _offer(
        self, live: Live, found: Transfer, now_s: float, backlog_tokens: int, behind: int
    ) -> LoadOffer:  # fmt: skip
        on_device = live.sequence.full_pages(live.sequence.length - 1) - len(found.keys)
        return LoadOffer(
            tiers=found.where,
            page_size=self._cache.page_size,
            payload_bytes=self._tiers.transfers.payload_bytes,
            pending_tokens=live.sequence.length - on_device * self._cache.page_size,
            budget_tokens=self._budget_tokens,
            backlog_tokens=backlog_tokens,
            queued=tuple(self._queued),
            behind=behind,
            waited_s=now_s - live.request.arrival_s,
            limit_s=self._limit_s,
            timeout_s=self._tiers.timeout_s,
        )

    def _load(self, live: Live, wait: Wait, now_s: float) -> None:
        """Start to load what was chosen, if the device still ends where it did."""
        wait.stage = Stage.SETTLED
        if (beyond := self._beyond(live)) is None or wait.found is None:
            return
        match, key = beyond
        key = PrefixKey(key.salt, key.units[: len(wait.keys)])
        if self._tiers.keys(key, match.last) != wait.keys:
            wait.stage, wait.found = Stage.FINDING, None
            return
        where = wait.found.where[: len(wait.keys)]
        wait.load = self._tiers.load(live.id, match, key, wait.keys, where)
        if wait.load is not None:
            wait.stage = Stage.LOADING
            self._count(wait.load, 1)
        elif self._cache.comes_soon:
            wait.stage = Stage.CHOSEN  # what is being saved makes room soon

    def _count(self, load: Load, sign: int) -> None:
        for tier in load.transfer.where:
            self._queued[tier] += sign

    def _over(self, load: Load, now_s: float, moved: Sequence[Moved] = ()) -> None:
        self.policy.loaded(load.transfer.where, moved, now_s - load.started_s)

    def _give_up(self, wait: Wait, now_s: float) -> None:
        if wait.stage is Stage.LOADING and wait.load is not None:
            self._over(wait.load, now_s)
        self._tiers.counters.given_up += 1
        wait.stage, wait.load = Stage.SETTLED, None

    # Ends ---------------------------------------------------------------------------------------

    def give_back(self, keeping: Collection[RequestId] = ()) -> bool:
        """Let the waiting request that loaded last give its pages back; False if there is none.

        Those of `keeping` do not.
        """
        for id, wait in reversed(self._waits.items()):
            if wait.hold is not None and id not in keeping:
                self._let_go(wait)
                self._tiers.counters.given_back += 1
                return True
        return False

    def _let_go(self, wait: Wait) -> None:
        if wait.hold is not None:
            self._tiers.let_go(wait.hold)
            wait.hold = None

    def leave(self, live: Live) -> None:
        """A request starts (and has its pages referenced itself), or has ended."""
        if (wait := self._waits.pop(live.id, None)) is not None:
            self._let_go(wait)
