"""Plans a step: who runs, how many tokens, whose pages go. Policies decide, this keeps the rules.

Rules: a step never exceeds its budget; a request already in a step in flight is left alone; a
request whose share needs pages takes them from less important ones.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from interlock.core.batch import NO_DRAFT, Draft, PageCopy
from interlock.core.drafter import TokenDrafter
from interlock.core.errors import ContractError
from interlock.core.kv_cache import KVCache, Match
from interlock.core.live import Live, PlannedRow
from interlock.core.queues import Queues
from interlock.core.request import RequestId
from interlock.core.samples import kept_from, usable_prefix
from interlock.core.scheduler import Share


@dataclass(frozen=True)
class DraftRules:
    """What planning needs to know of the drafter, by ability rather than by name."""

    name: str = "no drafter"
    """Class of the drafter, or of what simulates it."""
    num_drafts: int = 0
    lookback_tokens: int = 0
    own_rows: bool = False
    """The drafter writes cache rows ahead of the committed ones."""
    host: TokenDrafter | None = None
    """A drafter that proposes from token ids when a step is planned."""
    max_positions: int | None = None

    def limit(self, length: int, tokens_left: int) -> int:
        """Candidates worth verifying after `length` tokens when `tokens_left` may follow."""
        limit = min(self.num_drafts, tokens_left - 1)
        if self.max_positions is not None:
            limit = min(limit, self.max_positions - length)
        return max(0, limit)


class Planner:
    """Chooses each step's rows out of the queues."""

    def __init__(self, queues: Queues, cache: KVCache, drafts: DraftRules) -> None:
        self.queues = queues
        self._cache = cache
        self._drafts = drafts

    def plan(self, now_s: float) -> list[PlannedRow]:
        """Rows of the next step, possibly none."""
        queues, policies = self.queues, self.queues.policies
        ready = queues.ready()
        for live in ready:
            live.refresh_view()
        decodes = [live for live in ready if live.view.decoding]
        budget = policies.budget_tokens
        drafts = self._propose(decodes, budget)
        budget -= sum(len(draft.tokens) for draft in drafts.values())
        matches = self._look_up_waiting(budget, now_s)
        prefills = [live for live in ready if not live.view.decoding]
        step = _Step(queues, self._cache, self._drafts, now_s, drafts, matches)
        self._fill(step, decodes, [*prefills, *queues.waiting[: len(matches)]], budget)
        asked = len(ready) + len(matches)
        while not step.rows:  # whoever got a share could not start, or gave its own pages up
            decodes = [live for live in decodes if live.holding is not None]
            prefills = [live for live in prefills if live.holding is not None]
            if len(decodes) + len(prefills) in (0, asked):
                break
            self._fill(step, decodes, prefills, budget)
            asked = len(decodes) + len(prefills)
        if matches and not step.rows and not queues.running:
            raise queues.no_progress(queues.waiting[0])
        return step.rows

    def _fill(
        self, step: "_Step", decodes: Sequence[Live], prefills: Sequence[Live], budget: int
    ) -> None:
        """Let the chunking policy divide the budget, and place what it gives."""
        candidates = {live.id: live for live in [*decodes, *prefills]}
        shares = self.queues.policies.chunking.divide(
            [live.view for live in decodes], [live.view for live in prefills], budget
        )
        self._check_shares(shares, candidates, budget)
        for share in shares:
            step.place(candidates[share.id], share.tokens)

    def _look_up_waiting(self, budget_tokens: int, now_s: float) -> dict[RequestId, Match]:
        """Prefix matches of the waiting requests that may start, as many as the budget serves."""
        matches: dict[RequestId, Match] = {}
        room = self.queues.policies.max_requests - len(self.queues.running)
        promised = [0] * len(self._cache.pools)
        for live in self.queues.waiting[: max(0, room)]:
            if budget_tokens <= 0:
                break
            match = usable_prefix(live, self._cache)
            live.refresh_view()
            live.view.pending = live.sequence.length - match.tokens
            room_of = self._cache.room(live.sequence.length, match)
            load = self.queues.load(now_s, len(matches), room_of, promised)
            if not self.queues.policies.admission.admit(live.view, load):
                self.queues.counters.refused_admissions += 1
                break
            matches[live.id] = match
            budget_tokens -= live.view.pending
            promised = [p + need for p, (_, need) in zip(promised, room_of, strict=True)]
        return matches

    def _propose(self, decodes: Sequence[Live], budget: int) -> dict[RequestId, Draft]:
        """Drafts for the decoding requests, within the budget left by one token each."""
        drafts: dict[RequestId, Draft] = {}
        if self._drafts.num_drafts == 0:
            return drafts
        room = budget - len(decodes)
        if self.queues.waiting or len(decodes) < len(self.queues.ready()):
            room //= 2  # prompts wait: they get at least half of what drafts could take
        for live in decodes:
            limit = min(self._drafts.limit(live.sequence.length, live.tokens_left), room)
            if limit <= 0 or live.draftless:
                continue
            draft = live.draft
            if self._drafts.host is not None:
                tokens = live.sequence.slice(0, live.sequence.length)
                draft = self._drafts.host.propose(tokens, limit)
                if not isinstance(draft, Draft):
                    found = type(draft).__name__
                    raise ContractError(f"{self._drafts.name} proposed a {found}, not a Draft")
            draft = shorten(draft, limit)
            if draft.tokens:
                drafts[live.id] = draft
                room -= len(draft.tokens)
        return drafts

    def _check_shares(
        self, shares: Sequence[Share], candidates: dict[RequestId, Live], budget: int
    ) -> None:
        name = type(self.queues.policies.chunking).__name__
        total = sum(share.tokens for share in shares)
        known = all(
            share.id in candidates and 1 <= share.tokens <= candidates[share.id].view.pending
            for share in shares
        )
        if not known or len({share.id for share in shares}) != len(shares):
            raise ContractError(f"{name}.divide returned shares outside what is pending: {shares}")
        if total > max(budget, 1) or (candidates and not shares):
            raise ContractError(
                f"{name}.divide gave {total} tokens of a budget of {budget} "
                f"to {len(shares)} of {len(candidates)} requests"
            )


NO_COPIES: tuple[PageCopy, ...] = ()


class _Step:
    """A step under construction."""

    def __init__(
        self, queues: Queues, cache: KVCache, rules: DraftRules, now_s: float,
        drafts: dict[RequestId, Draft], matches: dict[RequestId, Match],
    ) -> None:  # fmt: skip
        self.rows: list[PlannedRow] = []
        self._queues = queues
        self._cache = cache
        self._rules = rules
        self._now_s = now_s
        self._drafts = drafts
        self._matches = matches
        self._generation = self._cache.generation
        self._admitting = True

    def place(self, live: Live, tokens: int) -> None:
        """Give a request its share if it can have the pages; preempts less important requests."""
        match, copies = self._matches.get(live.id), NO_COPIES
        if match is not None:
            if not self._admitting:
                return
            if match.source is not None or self._generation != self._cache.generation:
                match = usable_prefix(live, self._cache)
            tokens = min(tokens, live.sequence.length - match.tokens)
            self._admitting = self._queues.admit(live, match, tokens, self._now_s)
            if not self._admitting:
                return
            assert live.holding is not None
            copies = self._cache.fork_copies(live.holding, match)
        if live.holding is None:
            return  # preempted earlier in this step
        samples = live.computed + tokens == live.sequence.length
        draft = self._drafts.get(live.id, NO_DRAFT)
        row = PlannedRow(live, live.computed, tokens, draft, samples, copies)
        if not self._grow(row):
            return
        row.draft_limit = self._lookahead(row)
        if not row.samples:
            self._queues.counters.chunks += 1
        self.rows.append(row)

    def _grow(self, row: PlannedRow) -> bool:
        """Pages for the row's tokens: without its draft if need be, then at others' expense."""
        live = row.live
        assert live.holding is not None
        end = row.start + row.tokens
        kept = kept_from(live, self._cache)
        if self._cache.grow(live.holding, kept, end + len(row.draft.tokens)):
            return True
        row.draft = NO_DRAFT
        self._queues.slide_windows()
        while not self._cache.grow(live.holding, live.computed, end):
            self._admitting = False
            victim = self._queues.preempt_for(live, self._now_s)
            if victim is None:
                self._check_progress(live)
                return False
            self.rows = [placed for placed in self.rows if placed.live is not victim]
            if victim is live:
                return False
        return True

    def _check_progress(self, live: Live) -> None:
        if not any(other.in_flight for other in self._queues.running.values()) and not self.rows:
            raise self._queues.no_progress(live)

    def _lookahead(self, row: PlannedRow) -> int:
        """How many candidates to propose after this step, with pages for their draft rows."""
        live, rules = row.live, self._rules
        if rules.num_drafts == 0 or rules.host is not None or not row.samples:
            return 0
        limit = rules.limit(live.sequence.length, live.tokens_left - 1)
        if limit and rules.own_rows:
            assert live.holding is not None
            entries = row.start + row.tokens + len(row.draft.tokens) + limit - 1
            entries = min(entries, live.max_length - 1)
            if not self._cache.grow(live.holding, kept_from(live, self._cache), entries):
                return 0
        return limit


def shorten(draft: Draft, limit: int) -> Draft:
    """The first `limit` candidates; parents precede children, so any prefix is a draft."""
    if len(draft.tokens) <= limit:
        return draft
    parents = None if draft.parents is None else draft.parents[:limit]
    return Draft(draft.tokens[:limit], parents)
