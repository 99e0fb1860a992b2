"""Every request in the engine: how it is taken in, how it ends, and what comes out of it."""

from collections.abc import Callable

import numpy as np

from interlock.core.draft_rules import DraftRules
from interlock.core.errors import RequestError
from interlock.core.growth import end_text
from interlock.core.intake import Intake, due_s
from interlock.core.kv_cache import KVCache
from interlock.core.live import Live
from interlock.core.loads import Loads
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
from interlock.core.search import SampleSearch
from interlock.core.streams import sample_seed
from interlock.core.token_sequence import TokenSequence


class Lives:
    """Requests in, outputs out; steps are somebody else's."""

    def __init__(
        self, cache: KVCache, policies: Policies, drafts: DraftRules, intake: Intake,
        seed_of: Callable[[int], int], loads: Loads | None,
    ) -> None:  # fmt: skip
        self.cache, self.drafts, self.intake = cache, drafts, intake
        self.queues = Queues(policies, cache)
        self.loads = self.queues.loads = loads
        self._searching: dict[RequestId, SampleSearch] = {}
        self._may_end = np.zeros(intake.vocab_size, dtype=np.bool_)
        """Tokens that end some request."""
        self._outputs: list[RequestOutput] = []
        self.num_added = 0
        self.num_emitted = 0
        self._seed_of = seed_of
        self._live: dict[RequestId, Live] = {}
        self._groups: dict[RequestId, SampleGroup] = {}
        self._num_lives = 0
        self._held: list[SampleGroup] = []

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
            group = self.intake.group(request_id, request, max_length)
        except RequestError as error:
            record = _record(request, seed, 0)
            _close(record, Status.FAILED, FinishReason.ERROR, None, str(error))
            self._outputs.append(RequestOutput(request_id, request.index, (), record))
            return
        self._groups[request_id] = group
        looked_at = None
        if isinstance(group, SampleSearch):
            self._searching[request_id], looked_at = group, group.looked_at
        request = with_laws(request, looked_at)
        keys = self.cache.page_size, self.drafts.lookback_tokens
        for sample in range(request.sampling.samples):
            record = _record(request, sample_seed(seed, sample), sample)
            live = Live(
                id=RequestId(self._num_lives),
                group=group,
                request=request,
                record=record,
                sequence=TokenSequence(request, *keys, record.output_token_ids),
                running=self.queues.columns,
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
            self._may_end[[id for id in live.stop_ids if id < self.intake.vocab_size]] = True
        first, *others = group.lives
        self.queues.enqueue(first)
        if self.cache.shares_pages and others and not group.searches:
            group.held = others
            self._held.append(group)
            others = []
        for live in others if not group.searches else ():
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
    def waits_for_tiers(self) -> bool:
        """True while some copy of pages is under way for which requests may be waiting."""
        return bool(self._live and self.loads is not None and self.loads.under_way)

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

    def _end(
        self, live: Live, status: Status, reason: FinishReason, now_s: float,
        error: str | None = None,
    ) -> None:  # fmt: skip
        text = end_text(live)
        _close(live.record, status, reason, now_s, error)
        self._outputs += live.group.end(live, text, now_s)
        if live.group.ended:
            del self._groups[live.group.id]
            self._searching.pop(live.group.id, None)
        self._release()
        if live.holding is not None and live.in_flight:
            live.running.ended[live.holding.slot] = True
        else:
            self._leave(live, now_s)

    def _leave(self, live: Live, now_s: float) -> None:
        self.queues.leave(live, now_s)
        del self._live[live.id]
        if self.drafts.host is not None:
            sequence = live.sequence
            tokens = sequence.slice(0, sequence.length)
            self.drafts.host.ended(live.id, tokens, sequence.num_prompt)

    def _release(self) -> None:
        """Queue the samples that waited for a prompt which is computed, or will never be."""
        for group in self._held:
            for live in group.released():
                self.queues.enqueue(live)
        self._held = [group for group in self._held if group.held]


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
