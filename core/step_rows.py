"""The rows of a step as it is planned: who gets the pages of a share, and who loses them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from interlock.core.batch import NO_DRAFT, Draft, Ints, PageCopy
from interlock.core.draft_rules import DraftRules, Proposals
from interlock.core.kv_cache import Flags, KVCache, Match
from interlock.core.live import Live
from interlock.core.queues import Queues
from interlock.core.request import RequestId
from interlock.core.running import Roster
from interlock.core.samples import kept_from, usable_prefix

NO_SLOTS: Ints = np.zeros(0, dtype=np.int64)
NO_COPIES: tuple[PageCopy, ...] = ()


class Offers(NamedTuple):
    """Drafts for a step; how many candidates each had before the length policy cut it (whether
    there are pages is asked for those, because what a draft was cut to may depend on its
    candidates); and the work of a drafter on the host."""

    drafts: dict[RequestId, Draft]
    offered: Mapping[RequestId, int]
    made: Proposals = Proposals()


@dataclass(frozen=True, eq=False)
class PlannedRows:
    """A step's rows in columns.

    Row r computes tokens[r] pending tokens of roster.lives[r] from entry starts[r] on, then its
    draft, if `drafts` has one for it. `samples` are the rows that reach their request's newest
    token, so that the next one is drawn; draft_limits[r] candidates may be proposed after it, for
    which there are pages up to entry draft_ends[r].
    """

    roster: Roster
    starts: Ints
    tokens: Ints
    samples: Flags
    drafts: Mapping[int, Draft]
    drafted: Ints
    """Candidates of each row's draft."""
    draft_limits: Ints
    draft_ends: Ints
    copies: tuple[PageCopy, ...]
    made: Proposals


class _Chunk(NamedTuple):
    """A share of a prompt that has its pages."""

    live: Live
    slot: int
    tokens: int
    copies: tuple[PageCopy, ...]


class StepRows:
    """A step under construction."""

    def __init__(
        self, queues: Queues, cache: KVCache, rules: DraftRules, now_s: float,
        offers: Offers, matches: Mapping[RequestId, Match],
    ) -> None:  # fmt: skip
        self._queues = queues
        self._running = queues.columns
        self._cache = cache
        self._rules = rules
        self._now_s = now_s
        self._drafts, self._offered, self._made = offers
        self._matches = matches
        self._generation = self._cache.generation
        self._admitting = True
        self._decodes = NO_SLOTS
        self._chunks: list[_Chunk] = []
        self._chunks_first = False

    @property
    def empty(self) -> bool:
        """True while nobody runs in it."""
        return not (len(self._decodes) or self._chunks)

    def place(self, decodes: Ints, shares: Sequence[tuple[Live, int]], shares_first: bool) -> None:
        """Give these slots a token each and these requests shares, as far as there are pages.

        Where there are too few, they are taken from less important requests.
        """
        self._chunks_first = shares_first
        if not shares_first:
            self._place_decodes(decodes)
        for live, tokens in shares:
            self._place_share(live, tokens)
        if shares_first:
            self._place_decodes(decodes)

    def _place_decodes(self, slots: Ints) -> None:
        running, cache = self._running, self._cache
        slots = self._decodes = slots[running.present[slots]]
        computed = running.computed[slots]
        if cache.windows:
            for slot in slots[cache.passed(slots, computed)].tolist():
                cache.slide(running.holding(slot), kept_from(running.at(slot), cache))
        slots = slots[cache.short(slots, computed + 1)]
        ids, entries = running.ids[slots].tolist(), running.computed[slots] + 1
        if not ids or cache.grow_rows(slots, ids, entries):
            return
        for slot in slots.tolist():
            live = running.lives[slot]
            if live is not None and not self._grow(live, live.computed + 1):
                self._decodes = self._decodes[self._decodes != slot]

    def _place_share(self, live: Live, tokens: int) -> None:
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
        if self._grow(live, live.computed + tokens):
            self._chunks.append(_Chunk(live, live.holding.slot, tokens, copies))

    def _grow(self, live: Live, end: int) -> bool:
        """Pages for a request's tokens, at others' expense if need be."""
        assert live.holding is not None
        if self._cache.grow(live.holding, kept_from(live, self._cache), end):
            return True
        self._queues.slide_windows()
        while not self._cache.grow(live.holding, live.computed, end):
            self._admitting = False
            if self._cache.comes_soon:
                return False
            victim = self._queues.preempt_for(live, self._now_s)
            if victim is None:
                if not (self._running.in_flight.any() or self._cache.waits_for_copies):
                    raise self._queues.no_progress(live)
                return False
            self._decodes = self._decodes[self._running.present[self._decodes]]
            self._chunks = [chunk for chunk in self._chunks if chunk.live is not victim]
            if victim is live:
                return False
        return True

    def _grow_drafts(self) -> None:
        """Pages for drafts, of those that nobody needed for anything else; some go without."""
        running, cache, slots = self._running, self._cache, self._decodes
        offered = [self._offered.get(RequestId(id), 0) for id in running.ids[slots].tolist()]
        ends = running.computed[slots] + 1 + np.array(offered, dtype=np.int64)
        for r in np.flatnonzero(cache.short(slots, ends)).tolist():
            live = running.at(slots[r])
            if not cache.grow(running.holding(slots[r]), kept_from(live, cache), int(ends[r])):
                self._drafts.pop(live.id, None)

    def planned(self) -> PlannedRows:
        """The rows that have their pages."""
        if self._drafts:
            self._grow_drafts()
        chunks, running = self._chunks, self._running
        slots, tokens = self._decodes, np.ones(len(self._decodes), np.int64)
        if chunks:
            parts = [slots, np.array([chunk.slot for chunk in chunks], dtype=np.int64)]
            sizes = [tokens, np.array([chunk.tokens for chunk in chunks], dtype=np.int64)]
            order = -1 if self._chunks_first else 1
            slots, tokens = np.concatenate(parts[::order]), np.concatenate(sizes[::order])
        roster = running.roster(slots)
        starts = running.computed[slots]
        samples = starts + tokens == running.length[slots]
        self._queues.counters.chunks += len(slots) - int(np.count_nonzero(samples))
        drafts = {}
        if self._drafts:
            drafts = {r: self._drafts[id] for r, id in enumerate(roster.ids) if id in self._drafts}
        drafted = self._drafted(slots)
        limits, draft_ends = self._lookahead(slots, starts + tokens + drafted, samples)
        return PlannedRows(
            roster=roster,
            starts=starts,
            tokens=tokens,
            samples=samples,
            drafts=drafts,
            drafted=drafted,
            draft_limits=limits,
            draft_ends=draft_ends,
            copies=tuple(copy for chunk in chunks for copy in chunk.copies),
            made=self._made,
        )

    def _drafted(self, slots: Ints) -> Ints:
        if not self._drafts:
            return np.zeros(len(slots), np.int64)
        drafts = [self._drafts.get(RequestId(id), NO_DRAFT) for id in self._running.ids[slots]]
        return np.array([len(draft.tokens) for draft in drafts], dtype=np.int64)

    def _lookahead(self, slots: Ints, ends: Ints, samples: Flags) -> tuple[Ints, Ints]:
        """How many candidates to propose after this step, and where their draft rows would end.

        There are pages for those; a request that cannot get them gets no candidates.
        """
        running, rules, cache = self._running, self._rules, self._cache
        if rules.num_drafts == 0 or rules.host is not None:
            return np.zeros(len(slots), np.int64), ends
        length, most = running.length[slots], running.most[slots]
        limits = rules.limits(length, most - length - 1) * samples
        limits = np.minimum(limits, rules.wanted(int(np.count_nonzero(samples))))
        if rules.ahead is not None:
            until = ends + rules.ahead[limits]
            limits[until > cache.max_entries] = 0
            for r in np.flatnonzero(cache.short(slots, until) & (limits > 0)).tolist():
                kept = kept_from(running.at(slots[r]), cache)
                if not cache.grow(running.holding(slots[r]), kept, int(until[r])):
                    limits[r] = 0
            ends = np.where(limits > 0, until, ends)
        return limits, ends
