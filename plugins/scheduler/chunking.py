"""How a step's tokens are divided between decodes and prompts.

Both policies follow the given order, and step in where it would leave somebody out for ever: when
not every decode gets its token, those left out longest go first, and a prompt that was left out
for PATIENCE_STEPS steps goes first once.
"""

from collections.abc import Iterable, Sequence

from interlock.core.component import BuildContext
from interlock.core.request import RequestId
from interlock.core.scheduler import ChunkingPolicy, RequestView, Share
from interlock.plugins.scheduler import DecodeFirstConfig, PrefillFirstConfig

PATIENCE_STEPS = 64
"""Steps without a share after which a prompt overtakes those that the order puts before it."""


class PrefillFirst(ChunkingPolicy):
    """Prompts whole and in order, then decodes from what is left of the budget.

    A prompt longer than the budget is cut into chunks of the whole budget. A decode is left out of
    at most `max_prefill_steps` steps in a row (if there are more decodes than budget tokens, they
    take turns), a prompt never of two steps because of decodes.
    """

    def __init__(self, config: PrefillFirstConfig) -> None:
        self._max_prefill_steps = config.max_prefill_steps
        self._turns = _Turns()
        self._prompts_passed_over = False

    def divide(
        self, decodes: Sequence[RequestView], prefills: Sequence[RequestView], budget_tokens: int
    ) -> list[Share]:
        """See ChunkingPolicy. O(n log n) in the number of requests."""
        due = self._turns.longest(decodes) >= self._max_prefill_steps
        if not prefills or (due and not self._prompts_passed_over):
            shares = self._turns.tokens(decodes, budget_tokens)
            prompts = self._whole(prefills, budget_tokens, budget_tokens - len(shares))
            self._prompts_passed_over = not prompts
            shares += prompts
        else:
            shares = self._whole(prefills, budget_tokens, budget_tokens)
            shares += self._turns.tokens(decodes, budget_tokens - sum(s.tokens for s in shares))
            self._prompts_passed_over = False
        self._turns.end([*decodes, *prefills], shares)
        return shares

    def _whole(self, prefills: Sequence[RequestView], budget_tokens: int, left: int) -> list[Share]:
        """Leading prompts that fit what is left, each whole or a chunk as long as the budget."""
        shares = []
        for view in self._turns.with_overdue_first(prefills):
            tokens = min(view.pending, budget_tokens)
            if tokens > left:
                break
            shares.append(Share(view.id, tokens))
            left -= tokens
        return shares


class DecodeFirst(ChunkingPolicy):
    """One token for each decode, then chunks of prompts from what is left, in order.

    While prompts wait they get at least `min_prefill_share` of the budgets (over time: a share of
    half a token is one token every other step); decodes that this leaves out take turns.
    """

    def __init__(self, config: DecodeFirstConfig) -> None:
        self._min_prefill_share = config.min_prefill_share
        self._turns = _Turns()
        self._owed_tokens = 0.0

    def divide(
        self, decodes: Sequence[RequestView], prefills: Sequence[RequestView], budget_tokens: int
    ) -> list[Share]:
        """See ChunkingPolicy. O(n log n) in the number of requests."""
        pending = sum(view.pending for view in prefills)
        self._owed_tokens += self._min_prefill_share * budget_tokens
        reserve = min(int(self._owed_tokens), pending, budget_tokens)
        shares = self._turns.tokens(decodes, budget_tokens - reserve)
        left = available = budget_tokens - len(shares)
        for view in self._turns.with_overdue_first(prefills):
            tokens = min(view.pending, left)
            if tokens == 0:
                break
            shares.append(Share(view.id, tokens))
            left -= tokens
        given = available - left
        self._owed_tokens = max(0.0, self._owed_tokens - given) if given < pending else 0.0
        self._turns.end([*decodes, *prefills], shares)
        return shares


class _Turns:
    """A queue of the last step's requests, and for how many steps each has been left out.

    Whoever is served goes to the back, so the front is never younger than what follows it.
    """

    def __init__(self) -> None:
        self._left_out: dict[RequestId, int] = {}

    def longest(self, views: Iterable[RequestView]) -> int:
        """The most steps that one of these has been left out."""
        return max((self._left_out.get(view.id, 0) for view in views), default=0)

    def tokens(self, decodes: Sequence[RequestView], count: int) -> list[Share]:
        """One token for `count` decodes, in order; the front of the queue if not all fit."""
        if count < len(decodes):
            front = set(self._queued([view.id for view in decodes])[: max(count, 0)])
            decodes = [view for view in decodes if view.id in front]
        return [Share(view.id, 1) for view in decodes]

    def with_overdue_first(self, prefills: Sequence[RequestView]) -> list[RequestView]:
        """The prompts in order, but the one left out longest first if its patience is over."""
        waits = [self._left_out.get(view.id, 0) for view in prefills]
        longest = max(waits, default=0)
        if longest < PATIENCE_STEPS:
            return list(prefills)
        overdue = prefills[waits.index(longest)]
        return [overdue, *(view for view in prefills if view is not overdue)]

    def end(self, views: Iterable[RequestView], shares: Iterable[Share]) -> None:
        """Count the step for these requests; others are forgotten."""
        served = {share.id for share in shares}
        queue = self._queued([view.id for view in views])
        queue.sort(key=served.__contains__)
        self._left_out = {id: 0 if id in served else self._left_out.get(id, 0) + 1 for id in queue}

    def _queued(self, ids: Iterable[RequestId]) -> list[RequestId]:
        """These requests as they stand in the queue, newcomers last."""
        places = {id: place for place, id in enumerate(self._left_out)}
        return sorted(ids, key=lambda id: places.get(id, len(places)))


def build_prefill_first(config: PrefillFirstConfig, _context: BuildContext) -> PrefillFirst:
    """The policy with this bound."""
    return PrefillFirst(config)


def build_decode_first(config: DecodeFirstConfig, _context: BuildContext) -> DecodeFirst:
    """The policy with this share."""
    return DecodeFirst(config)
