"""The engine without a clock: emits plans, accepts completions, owns every request's state.

It is synchronous and never waits. Steps may overlap as long as they hold different requests; their
completions arrive in plan order.
"""

from collections import deque
from collections.abc import Callable

from interlock.core.batch import NO_DRAFT, StepPlan, StepResult
from interlock.core.bookkeeping import book_pass, book_prompt, book_row
from interlock.core.errors import RequestError
from interlock.core.growth import end_text, extend, finish_reason
from interlock.core.intake import Intake, due_s
from interlock.core.kv_cache import KVCache
from interlock.core.ledger import StepLedger
from interlock.core.live import Live, PlannedRow
from interlock.core.planner import DraftRules, Planner
from interlock.core.queues import Policies, Queues
from interlock.core.request import (
    FinishReason,
    Request,
    RequestId,
    RequestOutput,
    RequestRecord,
    Status,
)
from interlock.core.samples import SampleGroup, with_laws
from interlock.core.step_plan import check_draft, check_result, check_tokens, make_batch, make_plan
from interlock.core.streams import sample_seed
from interlock.core.token_sequence import TokenSequence


class EngineCore:
    """Requests in, step plans out, step results in, outputs out."""

    def __init__(
        self,
        cache: KVCache,
        policies: Policies,
        drafts: DraftRules,
        intake: Intake,
        ledger: StepLedger,
        seed_of: Callable[[int], int],
        executor: str = "the executor",
        verifier: str = "the verifier",
    ) -> None:
        """`executor` and `verifier` are the names of their classes, for messages."""
        self.cache = cache
        self.ledger = ledger
        self.queues = Queues(policies, cache)
        self._planner = Planner(self.queues, cache, drafts)
        self.drafts = drafts
        self.intake = intake
        self._seed_of = seed_of
        self._executor, self._verifier = executor, verifier
        self._live: dict[RequestId, Live] = {}
        self._groups: dict[RequestId, SampleGroup] = {}
        self._num_lives = 0
        self._flights: deque[tuple[StepPlan, list[PlannedRow]]] = deque()
        self._outputs: list[RequestOutput] = []
        self._next_step = 0
        self.num_added = 0
        self.num_emitted = 0

    # Requests -----------------------------------------------------------------------------------

    def add(self, request: Request, request_id: RequestId) -> None:
        """Take in a request whose time has come, under an id not used before.

        A request that cannot be served gets one failed record (in the next outputs), its reason in
        `error`; nothing else is disturbed.
        """
        self.num_added += 1
        seed = request.sampling.seed
        if not isinstance(seed, int):
            seed = self._seed_of(request.index)
        try:
            max_length = self.intake.check(request, self.cache)
            edits = [self.intake.edits(request) for _ in range(request.sampling.samples)]
        except RequestError as error:
            record = _record(request, seed, 0)
            _close(record, Status.FAILED, FinishReason.ERROR, None, str(error))
            self._outputs.append(RequestOutput(request_id, request.index, (), record))
            return
        self._groups[request_id] = group = SampleGroup(request_id, request.sampling)
        request = with_laws(request)
        for sample in range(request.sampling.samples):
            record = _record(request, sample_seed(seed, sample), sample)
            live = Live(
                id=RequestId(self._num_lives),
                group=group,
                request=request,
                record=record,
                sequence=TokenSequence(request, self.cache.page_size, self.drafts.lookback_tokens),
                salt=self.intake.salt_of(request),
                seed=sample_seed(seed, sample),
                stop_ids=self.intake.stop_ids(request),
                max_length=max_length,
                text=self.intake.output_text(request),
                adapter=self.intake.adapter(request),
                edits=edits[sample],
            )
            self._num_lives += 1
            self._live[live.id] = live
            group.lives.append(live)
        first, *others = group.lives
        self.queues.enqueue(first)
        if self.cache.shares_pages:
            group.held = others
        else:
            for live in others:
                self.queues.enqueue(live)

    def abort(self, request_id: RequestId, now_s: float) -> None:
        """End a request now, all its samples: no token of it is given out any more.

        Unknown or ended ids: nothing. Pages that a step in flight still writes are given back when
        that step completes.
        """
        group = self._groups.get(request_id)
        for live in group.lives if group else ():
            if not live.ended:
                self._end(live, Status.ABORTED, FinishReason.ABORT, now_s)

    def unfinished(self) -> list[RequestRecord]:
        """Records of the samples that were not given out: running, or waiting for a choice."""
        return [record for group in self._groups.values() for record in group.unfinished()]

    @property
    def has_work(self) -> bool:
        """True while some request waits, runs, or is in flight, or an output was not taken."""
        return bool(self._live or self._outputs)

    @property
    def num_waiting(self) -> int:
        """Requests without pages, preempted ones included."""
        return len(self.queues.waiting)

    @property
    def num_running(self) -> int:
        """Requests that hold pages."""
        return len(self.queues.running)

    @property
    def has_outputs(self) -> bool:
        """True when `take_outputs` would give something."""
        return bool(self._outputs)

    def take_outputs(self) -> list[RequestOutput]:
        """What happened since the last call, in order."""
        outputs, self._outputs = self._outputs, []
        return outputs

    # Steps --------------------------------------------------------------------------------------

    def plan(self, now_s: float) -> StepPlan | None:
        """The next step, or None if there is nothing that could run now."""
        rows = self._planner.plan(now_s)
        if not rows:
            return None
        for row in rows:
            check_draft(row.draft, self.intake.vocab_size, self.drafts.name)
        batch = make_batch(rows, self.cache.tables, self.cache.page_size)
        plan = make_plan(self._next_step, rows, batch, now_s)
        self._next_step += 1
        for row in rows:
            row.live.in_flight = True
        self._flights.append((plan, rows))
        return plan

    def indices(self, plan: StepPlan) -> list[int]:
        """Workload indices of a plan's rows, for the record of decisions."""
        return [self._live[request_id].request.index for request_id in plan.batch.request_ids]

    def complete(self, result: StepResult, now_s: float) -> None:
        """Commit a finished step: tokens out, rollback, pages indexed. Checks every invariant.

        Raises:
            ContractError: a component broke its contract; the message names it.
        """
        plan, rows = self._flights.popleft()
        check_result(plan, result, self._executor)
        held_pages = self.cache.pools[0].held
        for r, row in enumerate(rows):
            row.live.in_flight = False
            self._commit_row(r, row, result, now_s)
        self.cache.check()
        self.ledger.end_step(
            tokens_run=plan.batch.num_tokens + result.padding,
            padding=result.padding,
            rows=len(rows),
            running=max(self.num_running, len(rows)),
            waiting=self.num_waiting,
            held_pages=held_pages,
            total_pages=self.cache.pools[0].num_pages,
            start_s=plan.now_s,
            end_s=now_s,
        )

    def _commit_row(self, r: int, row: PlannedRow, result: StepResult, now_s: float) -> None:
        live = row.live
        is_pass = book_row(row, self.ledger)
        if live.ended:  # aborted while in flight
            self.queues.leave(live, now_s)
            del self._live[live.id]
            return
        if r in result.errors:
            self._fail_row(row, result.errors[r], now_s)
            return
        live.draftless = False
        if live.scores_prompt:
            book_prompt(row, result.prompt_logprobs.get(r, ()))
        emitted = self._emit(r, row, result, now_s) if row.samples else 0
        accepted = min(len(result.kept_paths.get(r, ())), emitted)
        if is_pass:
            book_pass(row, accepted, emitted, self.ledger)
        live.computed = row.start + row.tokens + accepted
        live.high_water = max(live.high_water, live.computed)
        live.draft = result.drafts.get(r, NO_DRAFT) if row.draft_limit else NO_DRAFT
        assert live.holding is not None
        self.cache.index_computed(live.holding, live.computed, now_s)
        self._release(live.group)
        reason = finish_reason(live) if emitted else None
        if reason is not None:
            self._end(live, Status.FINISHED, reason, now_s)
        else:
            self.cache.truncate(live.holding, live.computed)

    def _fail_row(self, row: PlannedRow, error: str, now_s: float) -> None:
        """End the request, unless a candidate may be to blame: then run it again without a draft.

        Attention reads the rows of rejected candidates with weight 0, and 0 times NaN is NaN.
        """
        live = row.live
        if not row.draft.tokens:
            self._end(live, Status.FAILED, FinishReason.ERROR, now_s, error)
            return
        assert live.holding is not None
        live.draft, live.draftless = NO_DRAFT, True
        self.cache.truncate(live.holding, live.computed)

    def _emit(self, r: int, row: PlannedRow, result: StepResult, now_s: float) -> int:
        """Give out a row's tokens up to the first that ends the request; returns how many."""
        given, path = result.tokens_of(r), result.kept_paths.get(r, ())
        check_tokens(row.draft, given, path, self.intake.vocab_size, self._verifier)
        tokens, text = extend(row.live, given, result.logprobs.get(r, ()), now_s)
        self.num_emitted += len(tokens)
        self._outputs += row.live.group.give(row.live.record, tokens, text)
        row.live.record.chunk_sizes.append(len(tokens))
        return len(tokens)

    # Ends ---------------------------------------------------------------------------------------

    def _end(
        self,
        live: Live,
        status: Status,
        reason: FinishReason,
        now_s: float,
        error: str | None = None,
    ) -> None:
        text = end_text(live)
        _close(live.record, status, reason, now_s, error)
        self._outputs += live.group.end(live, text, now_s)
        if live.group.ended:
            del self._groups[live.group.id]
        self._release(live.group)
        if not live.in_flight:
            self.queues.leave(live, now_s)
            del self._live[live.id]

    def _release(self, group: SampleGroup) -> None:
        for live in group.released():
            self.queues.enqueue(live)


def _record(request: Request, seed: int, sample: int) -> RequestRecord:
    return RequestRecord(
        index=request.index,
        sample=sample,
        seed=seed,
        turn=request.turn,
        num_prompt_tokens=request.num_prompt_tokens,
        prompt_token_ids=request.prompt_token_ids if request.sampling.echo else (),
        arrival_s=due_s(request),
    )


def _close(
    record: RequestRecord, status: Status, reason: FinishReason, now_s: float | None,
    error: str | None,
) -> None:  # fmt: skip
    record.status, record.finish_reason, record.error = status, reason, error
    record.finished_s = record.arrival_s if now_s is None else now_s
