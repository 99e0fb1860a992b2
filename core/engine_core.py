"""The engine without a clock: emits plans, accepts completions, owns every request's state.

It is synchronous and never waits. Steps may overlap as long as they hold different requests; their
completions arrive in plan order.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from interlock.core.batch import NO_DRAFT, Ints, StepPlan, StepResult
from interlock.core.bookkeeping import book_drafts, book_prompt, book_rows, outcome
from interlock.core.draft_rules import DraftRules
from interlock.core.growth import emitted, finish_reason, give_out
from interlock.core.intake import Intake
from interlock.core.kv_cache import Flags, KVCache
from interlock.core.ledger import StepLedger
from interlock.core.lives import Lives
from interlock.core.loads import Loads
from interlock.core.planner import Planner
from interlock.core.queues import Policies
from interlock.core.request import FinishReason, Status
from interlock.core.step_plan import check_answers, check_result, make_batch, make_plan
from interlock.core.step_rows import PlannedRows


class EngineCore(Lives):
    """Requests in, step plans out, step results in, outputs out."""

    def __init__(
        self, cache: KVCache, policies: Policies, drafts: DraftRules, intake: Intake,
        ledger: StepLedger, seed_of: Callable[[int], int], executor: str = "the executor",
        verifier: str = "the verifier", loads: Loads | None = None,
    ) -> None:  # fmt: skip
        """`executor` and `verifier` are the names of their classes, for messages."""
        super().__init__(cache, policies, replace(drafts, ledger=ledger), intake, seed_of, loads)
        self.ledger = ledger
        self._planner = Planner(self.queues, cache, self.drafts, intake.vocab_size, loads)
        self._executor, self._verifier = executor, verifier
        self._flights: deque[tuple[StepPlan, PlannedRows]] = deque()
        self._learned_s = 0.0
        self._next_step = 0

    def plan(self, now_s: float) -> StepPlan | None:
        """The next step, or None if there is nothing that could run now."""
        rows = self._planner.plan(now_s)
        if rows is None:
            return None
        running = self.queues.columns
        batch = make_batch(rows, running, self.cache.tables, self.cache.page_size)
        plan = make_plan(self._next_step, rows, batch, running, now_s)
        self._next_step += 1
        running.in_flight[rows.roster.slots] = True
        self._flights.append((plan, rows))
        return plan

    def indices(self) -> tuple[int, ...]:
        """Workload indices of the rows of the newest plan, for the record of decisions."""
        return self._flights[-1][1].roster.indices

    def complete(self, result: StepResult, now_s: float) -> None:
        """Commit a finished step: tokens out, rollback, pages indexed. Checks every invariant.

        Raises:
            ContractError: a component broke its contract; the message names it.
        """
        plan, rows = self._flights.popleft()
        check_result(plan, result, self._executor)
        check_answers(plan.batch, result, self.intake.vocab_size, self._verifier)
        num_rows, held_pages = plan.batch.num_rows, self.cache.pools[0].held
        self.queues.columns.in_flight[rows.roster.slots] = False
        if rows.made.seconds:
            draft_s = result.times.draft_s + rows.made.seconds
            result.times = result.times._replace(draft_s=draft_s)
        self.cache.now_s = now_s
        if self.loads is not None:
            self.loads.policy.stepped(plan.batch.num_tokens, now_s - plan.now_s)
        self._commit(rows, result, now_s)
        self.cache.check()
        self.ledger.end_step(
            tokens_run=plan.batch.num_tokens + result.padding, padding=result.padding,
            rows=num_rows, running=max(self.num_running, num_rows), waiting=self.num_waiting,
            held_pages=held_pages, total_pages=self.cache.pools[0].num_pages,
            start_s=plan.now_s, end_s=now_s,
        )  # fmt: skip

    def _commit(self, rows: PlannedRows, result: StepResult, now_s: float) -> None:
        running = self.queues.columns
        passes = book_rows(rows, running, self.ledger)
        counted = ~running.ended[rows.roster.slots]
        if result.errors or result.prompt_logprobs or not counted.all():
            self._drop_lost(rows, counted, result, now_s)
        counts, ends = emitted(rows, result, running, counted, self._may_end)
        self._outputs += give_out(rows, result, running, counts, passes, now_s)
        self.num_emitted += int(counts.sum())
        accepted = np.zeros(len(counts), np.int64)
        for r, path in result.kept_paths.items():
            accepted[r] = min(len(path), counts[r])
        book_drafts(rows, counted & passes, accepted, counts, self.ledger)
        if self.drafts.num_drafts:
            self._learn(rows, result, counted & passes, accepted, now_s)
        self._advance(rows, result, counted, counts, accepted)
        self._index(rows, counted, now_s)
        self._release()
        if self._searching:
            self._search(rows, result, counted, passes, now_s)
        for r in ends:
            live = rows.roster.lives[r]
            reason = finish_reason(live) if counts[r] else None
            if reason is not None:
                self._end(live, Status.FINISHED, reason, now_s)
        self._trim(rows)

    def _learn(
        self, rows: PlannedRows, result: StepResult, counted: Flags, accepted: Ints, now_s: float
    ) -> None:  # fmt: skip
        """Tell the drafter and the length policy what became of the drafts that count."""
        lives, host = rows.roster.lives, self.drafts.host
        verified = [r for r in rows.drafts if counted[r]]
        if host is not None:
            for r in verified:
                if r in result.draws:
                    host.verified(lives[r].id, rows.drafts[r], result.draws[r])
        seconds, self._learned_s = now_s - self._learned_s, now_s
        self.drafts.length.observe(outcome(rows, result, verified, accepted, seconds))

    def _drop_lost(
        self, rows: PlannedRows, counted: Flags, result: StepResult, now_s: float
    ) -> None:  # fmt: skip
        """Take leave of requests aborted in flight and of failed ones: they do not count.

        A failed row ends its request, unless a candidate may be to blame: then the request runs
        again without a draft. Attention reads the rows of rejected candidates with weight 0, and 0
        times NaN is NaN.
        """
        lives = rows.roster.lives
        for r, found in result.prompt_logprobs.items():
            if counted[r] and r not in result.errors:
                book_prompt(lives[r].record, int(rows.starts[r]), found)
        for r in np.flatnonzero(~counted).tolist():
            self._leave(lives[r], now_s)
        for r, error in result.errors.items():
            counted[r] &= not lives[r].ended
            if not counted[r]:
                continue
            counted[r] = False
            if r in rows.drafts:
                lives[r].draft, lives[r].draftless = NO_DRAFT, True
            else:
                for live in lives[r].group.lives if lives[r].group.searches else lives[r : r + 1]:
                    self._end(live, Status.FAILED, FinishReason.ERROR, now_s, error)
        if result.errors:
            counted &= [not live.ended for live in lives]

    def _advance(
        self, rows: PlannedRows, result: StepResult, counted: Flags, counts: Ints, accepted: Ints
    ) -> None:
        """What the requests of the rows that count have now."""
        running, lives = self.queues.columns, rows.roster.lives
        done = rows.starts + rows.tokens + accepted
        newest = result.token_offsets[:-1] + counts - 1
        slots, gave = rows.roster.slots[counted], counts > 0
        running.computed[slots] = done = done[counted]
        running.high_water[slots] = np.maximum(running.high_water[slots], done)
        running.length[slots] += counts[counted]
        running.last[rows.roster.slots[gave]] = result.tokens[newest[gave]]
        if self.drafts.num_drafts:
            limits = rows.draft_limits.tolist()
            for r in np.flatnonzero(counted).tolist():
                draft = result.drafts.get(r, NO_DRAFT) if limits[r] else NO_DRAFT
                lives[r].draft, lives[r].draftless = draft, False

    def _search(
        self, rows: PlannedRows, result: StepResult, counted: Flags, passes: Flags, now_s: float
    ) -> None:  # fmt: skip
        """Tell searches what was computed for them; they say who goes on."""
        for r in np.flatnonzero(counted & rows.samples).tolist():
            live = rows.roster.lives[r]
            group = self._searching.get(live.group.id)
            if group is None:
                continue
            live.record.target_passes += bool(passes[r])
            live.record.pass_tokens += bool(passes[r])
            ended = group.learn(live, result.logprobs.get(r, ()), self.queues, now_s)
            for one, reason in ended:
                self._end(one, Status.FINISHED, reason, now_s)
            outputs = (one.record.output_token_ids for one, _ in ended if not one.record.dropped)
            self.num_emitted += sum(map(len, outputs))

    def _index(self, rows: PlannedRows, counted: Flags, now_s: float) -> None:
        """Make the pages visible that are full now."""
        running, slots = self.queues.columns, rows.roster.slots
        known = running.length[slots] - self.drafts.lookback_tokens
        known = np.minimum(known, running.computed[slots])
        for slot in slots[counted & self.cache.unindexed(slots, known)].tolist():
            self.cache.index_computed(running.holding(slot), int(running.computed[slot]), now_s)

    def _trim(self, rows: PlannedRows) -> None:
        """Give back pages beyond what is computed."""
        running = self.queues.columns
        slots = rows.roster.slots[running.present[rows.roster.slots]]
        for slot in slots[self.cache.surplus(slots, running.computed[slots])].tolist():
            self.cache.truncate(running.holding(slot), int(running.computed[slot]))
