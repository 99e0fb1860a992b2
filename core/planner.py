"""Plans a step: who runs, how many tokens, whose pages go. Policies decide, this keeps the rules.

Rules: a step never exceeds its budget; a request already in a step in flight is left alone; a
request whose share needs pages takes them from less important ones.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from interlock.core.batch import NO_DRAFT, Draft, Ints
from interlock.core.draft_length import StepLoad
from interlock.core.draft_rules import DraftRules, Proposals
from interlock.core.errors import ContractError
from interlock.core.kv_cache import KVCache, Match
from interlock.core.live import Live
from interlock.core.loads import Loads
from interlock.core.queues import Queues
from interlock.core.request import RequestId
from interlock.core.samples import usable_prefix
from interlock.core.scheduler import Decodes, Division, RequestView
from interlock.core.step_plan import check_draft
from interlock.core.step_rows import Offers, PlannedRows, StepRows


class Planner:
    """Chooses each step's rows out of the queues."""

    def __init__(
        self, queues: Queues, cache: KVCache, drafts: DraftRules, vocab_size: int,
        loads: Loads | None = None,
    ) -> None:  # fmt: skip
        self.queues = queues
        self._loads = loads
        self._cache = cache
        self._drafts = drafts
        self._vocab_size = vocab_size

    def plan(self, now_s: float) -> PlannedRows | None:
        """Rows of the next step, if there are any."""
        queues, running = self.queues, self.queues.columns
        if self._loads is not None:
            self._loads.collect(now_s)
        self._cache.expire(now_s)
        ready = queues.ready()
        pending = running.length[ready] - running.computed[ready]
        if not pending.all():  # some rest
            ready, pending = ready[pending > 0], pending[pending > 0]
        decoding = (pending == 1) & (running.length[ready] > running.prompt[ready])
        decodes = ready[decoding]
        prefills = [running.at(slot) for slot in ready[~decoding].tolist()]
        budget = queues.policies.budget_tokens
        offers = self._propose(decodes, budget, bool(prefills or queues.waiting))
        budget -= sum(len(draft.tokens) for draft in offers.drafts.values())
        able = self._able_to_start(int(pending[~decoding].sum()), now_s)
        matches = self._look_up_waiting(able, budget, now_s)
        step = StepRows(queues, self._cache, self._drafts, now_s, offers, matches)
        self._fill(step, decodes, [*prefills, *able[: len(matches)]], budget)
        asked = len(ready) + len(matches)
        while step.empty:  # whoever got a share could not start, or gave its own pages up
            decodes = decodes[running.present[decodes]]
            prefills = [live for live in prefills if live.holding is not None]
            if len(decodes) + len(prefills) in (0, asked):
                break
            self._fill(step, decodes, prefills, budget)
            asked = len(decodes) + len(prefills)
        if step.empty and self._cache.waits_for_copies:
            return None
        if step.empty and not running.in_flight.any() and queues.release(now_s):
            return self.plan(now_s)
        if matches and step.empty and not queues.running:
            raise queues.no_progress(queues.waiting[0])
        return None if step.empty else step.planned()

    def _fill(self, step: StepRows, slots: Ints, prefills: Sequence[Live], budget: int) -> None:
        """Let the chunking policy divide the budget, and place what it gives."""
        candidates = {live.id: live for live in prefills}
        for live in prefills:
            if live.holding is not None:
                live.refresh_view()
        decodes = Decodes(self.queues.columns.ids[slots], self._view)
        views = [live.view for live in prefills]
        division = self.queues.policies.chunking.divide(decodes, views, budget)
        self._check(division, decodes, candidates, budget)
        if division.decodes is not decodes.ids:
            slot_of = dict(zip(decodes.ids.tolist(), slots.tolist(), strict=True))
            chosen = [slot_of[id] for id in np.asarray(division.decodes).tolist()]
            slots = np.array(chosen, dtype=np.int64)
        shares = [(candidates[share.id], share.tokens) for share in division.shares]
        step.place(slots, shares, division.shares_first)

    def _view(self, request_id: RequestId) -> RequestView:
        live = self.queues.running[request_id]
        live.refresh_view()
        return live.view

    def _able_to_start(self, backlog_tokens: int, now_s: float) -> list[Live]:
        """The first waiting requests, as many as could run, but for those whose pages come."""
        room = max(0, self.queues.policies.max_requests - len(self.queues.running))
        first, able = self.queues.waiting[:room], []
        if self._loads is None:
            return first
        for place, live in enumerate(first):
            behind = len(self.queues.waiting) - place - 1
            if self._loads.ready(live, now_s, backlog_tokens, behind):
                able.append(live)
            backlog_tokens += live.view.pending
        return able

    def _look_up_waiting(
        self, able: Sequence[Live], budget_tokens: int, now_s: float
    ) -> dict[RequestId, Match]:
        """Prefix matches of the first of `able` requests, as many as the budget serves."""
        matches: dict[RequestId, Match] = {}
        promised = [0] * len(self._cache.pools)
        for live in able:
            if budget_tokens <= 0:
                break
            match = usable_prefix(live, self._cache)
            live.refresh_view()
            live.view.pending = live.sequence.length - match.tokens
            room_of = self._admissible(live, match, matches, promised, now_s)
            if room_of is None:
                self.queues.counters.refused_admissions += 1
                break
            matches[live.id] = match
            budget_tokens -= live.view.pending
            promised = [p + need for p, (_, need) in zip(promised, room_of, strict=True)]
        return matches

    def _admissible(
        self, live: Live, match: Match, admitted: Mapping[RequestId, Match], promised: list[int],
        now_s: float,
    ) -> list[tuple[int, int]] | None:  # fmt: skip
        """The room for a request in each table (see KVCache.room), if it may start.

        What others loaded and wait with does not keep it waiting, but for those that start too.
        """
        while True:
            room_of = self._cache.room(live.sequence.length, match)
            load = self.queues.load(now_s, len(admitted), room_of, promised)
            if self.queues.policies.admission.admit(live.view, load):
                return room_of
            if self._loads is None or not self._loads.give_back({*admitted, live.id}):
                return None

    def _propose(self, slots: Ints, budget: int, prompts_wait: bool) -> Offers:
        """Drafts for the decoding requests, within the budget left by one token each."""
        rules, running, room = self._drafts, self.queues.columns, budget - len(slots)
        if rules.num_drafts == 0 or not len(slots):
            return Offers({}, {})
        if prompts_wait:
            room //= 2  # they get at least half of what drafts could take
        lengths = running.length[slots]
        limits = rules.limits(lengths, running.most[slots] - lengths)
        limits = np.minimum(limits, self._cache.max_entries - lengths).tolist()
        most = min(room, rules.wanted(len(slots)) if rules.host else rules.num_drafts)
        found: dict[RequestId, Draft] = {}
        temperatures, asked, begin_s = [], 0, rules.clock_s()
        for slot, limit in zip(slots.tolist(), limits, strict=True):
            live, limit = running.at(slot), min(limit, most)
            draft = live.draft
            if limit <= 0 or live.draftless or (draft is NO_DRAFT and rules.host is None):
                continue
            if rules.host is not None:
                tokens = live.sequence.slice(0, live.sequence.length)
                draft, asked = rules.host.propose(live.id, tokens, limit), asked + 1
            if not isinstance(draft, Draft):
                kind = type(draft).__name__
                raise ContractError(f"{rules.name} proposed a {kind}, not a Draft")
            check_draft(draft, self._vocab_size, rules.name)
            if draft.tokens:
                found[live.id] = draft.first(limit)
                temperatures.append(live.request.sampling.temperature)
        made = Proposals(asked, most, rules.clock_s() - begin_s) if asked else Proposals()
        load = StepLoad(len(slots), prompts_wait, room, temperatures)
        cut = rules.cut([*found.values()], load)
        kept = {id: draft for id, draft in zip(found, cut, strict=True) if draft.tokens}
        return Offers(kept, {id: len(found[id].tokens) for id in kept}, made)

    def _check(
        self, division: Division, decodes: Decodes, prefills: Mapping[RequestId, Live], budget: int
    ) -> None:
        name = type(self.queues.policies.chunking).__name__
        try:
            total = _given(division, decodes, prefills)
        except (AttributeError, TypeError):  # no division at all, or parts of other types
            total = None
        if total is None:
            raise ContractError(f"{name}.divide returned {division}, which is not what is pending")
        if total > max(budget, 1) or (not total and (len(decodes) or prefills)):
            asked = f"{len(decodes)} decodes and {len(prefills)} prompts"
            raise ContractError(f"{name}.divide gave {total} of {budget} tokens to {asked}")


def _given(division: Division, decodes: Decodes, prefills: Mapping[RequestId, Live]) -> int | None:
    """The tokens of a division; None unless all are pending and nobody gets some twice."""
    ids, shares = np.asarray(division.decodes), division.shares
    known = division.decodes is decodes.ids or (
        len(np.unique(ids)) == len(ids) and bool(np.isin(ids, decodes.ids).all())
    )
    known = known and len({share.id for share in shares}) == len(shares)
    for id, tokens in shares if known else ():
        known = known and isinstance(tokens, int | np.integer) and id in prefills
        known = known and 1 <= tokens <= prefills[id].view.pending
    return len(ids) + sum(share.tokens for share in shares) if known else None
