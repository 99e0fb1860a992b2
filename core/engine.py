"""The engine that users drive: arrivals, clock, executor, and the core's plans between them."""

import heapq
import math
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch

from interlock.core.batch import StepDecision, StepPlan, StepResult
from interlock.core.cache_watch import CacheWatch
from interlock.core.clock import Clock
from interlock.core.engine_core import EngineCore
from interlock.core.errors import ContractError, shown
from interlock.core.executor import Executor
from interlock.core.intake import due_s, require_request
from interlock.core.planes import Planes
from interlock.core.request import Request, RequestId, RequestOutput, SamplingParams
from interlock.core.resolver import Resolution
from interlock.core.text import TextCodec

Observer = Callable[[StepPlan, StepResult], None]


@dataclass(eq=False)
class Engine:
    """A composition that serves requests.

    `submit` takes requests in any order; `step` runs one step; `outputs` runs until all requests
    ended. Nothing runs in the background.
    """

    core: EngineCore
    executor: Executor
    clock: Clock
    resolution: Resolution
    codec: TextCodec | None
    classes: dict[str, type]
    """Seam -> class of what was built for it."""
    dtype: torch.dtype
    planes: Planes | None = None
    observers: Sequence[Observer] = ()
    max_in_flight: int = 1
    ranks: Mapping[str, Any] = field(default_factory=dict)
    """Facts about the processes that share the model, for a manifest."""
    losses: Callable[[], Mapping[str, float]] = dict
    """Of the cache's rows on rank 0: see AttentionBackend."""
    watches: Mapping[str, CacheWatch] = field(default_factory=dict)
    """Seam -> who follows the cache."""

    def __post_init__(self) -> None:
        self.decisions: list[StepDecision] = []
        self._last_rows: tuple[Any, tuple[tuple[int, int, int], ...]] = None, ()
        self._flights: deque[tuple[StepPlan, tuple[int, ...], StepResult]] = deque()
        self._pending: list[tuple[float, int, Request]] = []
        self._next_id = 0

    def submit(
        self, request: Request | str | Sequence[int], sampling: SamplingParams | None = None
    ) -> RequestId:
        """Queue a request: a `Request`, a text (needs a tokenizer), or token ids.

        It becomes visible at its `arrival_s`. A request that cannot be served ends at once with
        its reason in the finished record; it is never an exception here.

        Raises:
            ValueError: text without a tokenizer, or that cannot be encoded.
            TypeError: what is no request, or sampling that is no SamplingParams; names it.
        """
        request_id = RequestId(self._next_id)
        if not isinstance(request, Request):
            request = self._make_request(request, request_id)
        if sampling is not None:
            request = replace(request, sampling=sampling)
        require_request(request)
        self._next_id += 1
        heapq.heappush(self._pending, (due_s(request), request_id, request))
        return request_id

    def _make_request(self, prompt: Any, index: int) -> Request:
        if isinstance(prompt, str):
            if self.codec is None:
                raise ValueError("this model has no tokenizer.json: submit token ids, not text")
            return Request(index, tuple(self.codec.encode(prompt)), prompt_text=prompt)
        if isinstance(prompt, bytes) or not isinstance(prompt, Sequence | np.ndarray):
            raise TypeError(f"{shown(prompt)} is not a Request, a text or a sequence of token ids")
        return Request(index, tuple(prompt))

    def abort(self, request_id: RequestId) -> None:
        """End a request now, whatever it is doing; its record is in the next outputs."""
        for place, (arrival_s, pending_id, request) in enumerate(self._pending):
            if pending_id == request_id:
                self._pending.pop(place)
                heapq.heapify(self._pending)
                self.core.add(request, request_id)
                self.core.abort(request_id, arrival_s)
                return
        self.core.abort(request_id, self.clock.now())

    @property
    def has_work(self) -> bool:
        """True while a request is queued, waiting or running, or its record was not given out."""
        return bool(self._pending or self._flights) or self.core.has_work

    def step(self) -> list[RequestOutput]:
        """Run one step (or wait a while for the next arrival, with nothing to do); what came out.

        Raises:
            ContractError: a component broke its contract, or refuses to let anything run.
        """
        while len(self._flights) < self.max_in_flight and self._launch():
            pass
        if self._flights:
            self._land()
        elif self.core.waits_for_tiers:
            self._wait_for_tiers()
        elif self.core.num_waiting and not self._pending:
            policy = type(self.core.queues.policies.admission).__name__
            raise ContractError(
                f"{self.core.num_waiting} requests wait, nothing runs and no step was planned; "
                f"{policy} admits nobody"
            )
        elif self._pending and not self.core.has_outputs:
            self.clock.wait_until(self._pending[0][0])
        return self.core.take_outputs()

    def _wait_for_tiers(self) -> None:
        loads, arrival_s = self.core.loads, self._pending[0][0] if self._pending else math.inf
        assert loads is not None
        if not self.core.has_outputs:
            loads.transfers.wait(self.clock, min(arrival_s, loads.deadline_s()))

    def _launch(self) -> bool:
        now_s = self.clock.now()
        while self._pending and self._pending[0][0] <= now_s:
            _, request_id, request = heapq.heappop(self._pending)
            self.core.add(request, RequestId(request_id))
        plan = self.core.plan(now_s)
        if plan is None:
            return False
        indices = self.core.indices()
        result = self.executor.execute(plan)
        self.clock.advance(result.duration_s)
        self._flights.append((plan, indices, result))
        return True

    def _land(self) -> None:
        plan, indices, result = self._flights.popleft()
        end_s = self.clock.now()
        self.core.complete(result, end_s)
        for observe in self.observers:
            observe(plan, result)
        drafted, offsets = plan.batch.num_drafts, plan.batch.row_offsets
        tokens = offsets[1:] - offsets[:-1] - drafted
        key = indices, tokens.tobytes(), drafted.tobytes()
        if key != self._last_rows[0]:  # decodes repeat the step before
            rows = zip(indices, tokens.tolist(), drafted.tolist(), strict=True)
            self._last_rows = key, tuple(rows)
        self.decisions.append(StepDecision(plan.step_id, plan.now_s, end_s, self._last_rows[1]))

    def watch(self, observer: Observer) -> None:
        """Call this with the plan and the result of every step from now on."""
        self.observers = (*self.observers, observer)

    def outputs(self) -> Iterator[RequestOutput]:
        """Everything that comes out until every submitted request ended."""
        while self.has_work:
            yield from self.step()
        yield from self.core.take_outputs()

    def stats(self) -> dict[str, Any]:
        """Counts right now: requests waiting and running, pages by state, tokens by kind."""
        pool = self.core.cache.pools[0]
        return {
            "queued": len(self._pending),
            "waiting": self.core.num_waiting,
            "running": self.core.num_running,
            "free_pages": pool.allocator.free_pages(),
            "cached_pages": pool.cached,
            "held_pages": pool.held,
            "total_pages": pool.num_pages,
            "steps": self.core.ledger.steps,
            "tokens": self.core.ledger.tokens(),
        }

    def close(self) -> None:
        """Release the executor, and end copies to tiers, after what they are doing."""
        if self.core.loads is not None:
            self.core.loads.close()
        for watch in self.watches.values():
            watch.close()
        self.executor.close()
