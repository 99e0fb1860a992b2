"""A request inside the engine."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from interlock.core.batch import NO_DRAFT, Draft
from interlock.core.kv_cache import Holding
from interlock.core.logit_edits import LogitEdits
from interlock.core.request import Request, RequestId, RequestRecord
from interlock.core.running import Running
from interlock.core.scheduler import RequestView
from interlock.core.stop_text import OutputText
from interlock.core.token_sequence import TokenSequence

if TYPE_CHECKING:
    from interlock.core.samples import SampleGroup


@dataclass(slots=True, eq=False)
class Live:
    """State of one sample of a request from intake to its end; `id` is its own in the engine.

    While it runs, `running` has in columns what changes with every step. `high_water` is the most
    entries it ever had computed, up to its last preemption (what is computed again below it was
    lost to that). `max_length` is prompt + output at most.
    """

    id: RequestId
    group: "SampleGroup"
    request: Request
    record: RequestRecord
    sequence: TokenSequence
    running: Running
    salt: bytes
    seed: int
    stop_ids: frozenset[int]
    max_length: int
    adapter: int = -1
    edits: LogitEdits | None = None
    holding: Holding | None = None
    high_water: int = 0
    draft: Draft = NO_DRAFT
    text: OutputText | None = None
    """Of a request that wants text."""
    draftless: bool = False
    """Its last step failed with a draft: the next one goes without."""
    view: RequestView = field(init=False)
    """What policies see of it."""

    def __post_init__(self) -> None:
        self.view = RequestView(
            id=self.id,
            arrival_s=self.request.arrival_s,
            priority=self.request.priority,
            tenant=self.request.tenant,
            prompt_tokens=self.sequence.num_prompt,
            total_tokens=self.sequence.length,
            pending=self.sequence.length,
        )

    @property
    def computed(self) -> int:
        """Entries that have committed cache rows."""
        return int(self.running.computed[self.holding.slot]) if self.holding else 0

    @property
    def rests(self) -> bool:
        """True while it has pages and nothing to compute: a beam that waits for the others."""
        return self.holding is not None and self.computed == self.sequence.length

    @property
    def in_flight(self) -> bool:
        """True while a step that holds it is under way."""
        return self.holding is not None and bool(self.running.in_flight[self.holding.slot])

    @property
    def tokens_left(self) -> int:
        """Output tokens it may still emit."""
        return self.max_length - self.sequence.length

    @property
    def scores_prompt(self) -> bool:
        """True while the laws of its prompt's tokens are asked for and not all known."""
        if self.request.sampling.prompt_logprobs is None or self.record.sample:
            return False
        return len(self.record.prompt_logprobs) < self.sequence.num_prompt

    @property
    def ended(self) -> bool:
        """True once its record is final."""
        return self.record.finish_reason is not None

    def refresh_view(self) -> None:
        """Bring the policies' view up to date."""
        view = self.view
        view.total_tokens = self.sequence.length
        view.pending = self.sequence.length - self.computed
        view.pages = int(self.holding.counts[0]) if self.holding else 0
