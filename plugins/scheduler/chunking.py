"""How a step's tokens are divided between decodes and prompts.

Both policies follow the given order, and step in where it would leave somebody out for ever: when
not every decode gets its token, those left out longest go first, and a prompt that was left out
for PATIENCE_STEPS steps goes first once.
"""

from collections.abc import Iterable, Sequence

import numpy as np

from interlock.core.batch import Ints
from interlock.core.component import BuildContext
from interlock.core.scheduler import ChunkingPolicy, Decodes, Division, RequestView, Share
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
        self, decodes: Decodes, prefills: Sequence[RequestView], budget_tokens: int
    ) -> Division:
        """See ChunkingPolicy. O(prefills) when every decode gets its token."""
        due = self._turns.longest(decodes) >= self._max_prefill_steps
        decodes_first = not prefills or (due and not self._prompts_passed_over)
        if decodes_first:
            served = self._turns.tokens(decodes, budget_tokens)
            shares = self._whole(prefills, budget_tokens, budget_tokens - len(served))
            self._prompts_passed_over = not shares
        else:
            shares = self._whole(prefills, budget_tokens, budget_tokens)
            served = self._turns.tokens(decodes, budget_tokens - sum(s.tokens for s in shares))
            self._prompts_passed_over = False
        self._turns.end(decodes, served, prefills, shares)
        return Division(served, shares, shares_first=not decodes_first)

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
        self, decodes: Decodes, prefills: Sequence[RequestView], budget_tokens: int
    ) -> Division:
        """See ChunkingPolicy. O(prefills) when every decode gets its token."""
        pending = sum(view.pending for view in prefills)
        self._owed_tokens += self._min_prefill_share * budget_tokens
        reserve = min(int(self._owed_tokens), pending, budget_tokens)
        served = self._turns.tokens(decodes, budget_tokens - reserve)
        left = available = budget_tokens - len(served)
        shares = []
        for view in self._turns.with_overdue_first(prefills):
            tokens = min(view.pending, left)
            if tokens == 0:
                break
            shares.append(Share(view.id, tokens))
            left -= tokens
        given = available - left
        self._owed_tokens = max(0.0, self._owed_tokens - given) if given < pending else 0.0
        self._turns.end(decodes, served, prefills, shares)
        return Division(served, shares)


class _Turns:
    """Who was left out of the last steps, for how many of them, and who is served next.

    Decodes that do not all fit stand in a queue, in which those that are served go to the back.
    While all of them are served there is nothing to note.
    """

    def __init__(self) -> None:
        self._decodes_left_out: dict[int, int] = {}
        self._prompts_left_out: dict[int, int] = {}
        self._places: dict[int, int] = {}

    def longest(self, decodes: Decodes) -> int:
        """The most steps that one of these has been left out."""
        waits = self._decodes_left_out
        return max((waits.get(id, 0) for id in decodes.ids.tolist()), default=0) if waits else 0

    def tokens(self, decodes: Decodes, count: int) -> Ints:
        """Ids of `count` decodes that get a token, in order; all of them if they fit."""
        if count >= len(decodes):
            return decodes.ids
        front = self._queued(decodes.ids.tolist())[: max(count, 0)]
        return decodes.ids[np.isin(decodes.ids, front)]

    def with_overdue_first(self, prefills: Sequence[RequestView]) -> list[RequestView]:
        """The prompts in order, but the one left out longest first if its patience is over."""
        waits = [self._prompts_left_out.get(view.id, 0) for view in prefills]
        longest = max(waits, default=0)
        if longest < PATIENCE_STEPS:
            return list(prefills)
        overdue = prefills[waits.index(longest)]
        return [overdue, *(view for view in prefills if view is not overdue)]

    def end(
        self, decodes: Decodes, served: Ints, prefills: Sequence[RequestView],
        shares: Sequence[Share],
    ) -> None:  # fmt: skip
        """Count the step for these requests; others are forgotten."""
        given = {share.id for share in shares}
        before = self._prompts_left_out
        self._prompts_left_out = {
            view.id: before.get(view.id, 0) + 1 for view in prefills if view.id not in given
        }
        if len(served) == len(decodes):
            self._decodes_left_out = {}
            return
        chosen, waits = set(served.tolist()), self._decodes_left_out
        queue = self._queued(decodes.ids.tolist())
        queue.sort(key=chosen.__contains__)
        self._decodes_left_out = {id: waits.get(id, 0) + 1 for id in queue if id not in chosen}
        self._places = {id: place for place, id in enumerate(queue)}

    def _queued(self, ids: Iterable[int]) -> list[int]:
        """These decodes as they stand in the queue, newcomers last."""
        return sorted(ids, key=lambda id: self._places.get(id, len(self._places)))


def build_prefill_first(config: PrefillFirstConfig, _context: BuildContext) -> PrefillFirst:
    """The policy with this bound."""
    return PrefillFirst(config)


def build_decode_first(config: DecodeFirstConfig, _context: BuildContext) -> DecodeFirst:
    """The policy with this share."""
    return DecodeFirst(config)
