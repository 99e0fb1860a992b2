"""A request inside the engine, and one row of a planned step."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from interlock.core.batch import NO_DRAFT, Draft, PageCopy
from interlock.core.kv_cache import Holding
from interlock.core.logit_edits import LogitEdits
from interlock.core.request import Request, RequestId, RequestRecord
from interlock.core.scheduler import RequestView
from interlock.core.stop_text import OutputText
from interlock.core.token_sequence import TokenSequence

if TYPE_CHECKING:
    from interlock.core.samples import SampleGroup


@dataclass(slots=True, eq=False)
class Live:
    """State of one sample of a request from intake to its end; `id` is its own in the engine.

    `computed` entries have committed cache rows; `high_water` is the most it ever had (what is
    computed again below it was lost to preemption). `max_length` is prompt + output at most.
    """

    id: RequestId
    group: "SampleGroup"
    request: Request
    record: RequestRecord
    sequence: TokenSequence
    salt: bytes
    seed: int
    stop_ids: frozenset[int]
    max_length: int
    adapter: int = -1
    edits: LogitEdits | None = None
    holding: Holding | None = None
    computed: int = 0
    high_water: int = 0
    draft: Draft = NO_DRAFT
    in_flight: bool = False
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
            admission=None,
            pages=0,
            preemptions=0,
        )

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
        view.pages = self.holding.counts[0] if self.holding else 0


@dataclass(slots=True, eq=False)
class PlannedRow:
    """`tokens` pending tokens of a request from `start`, then its draft's tokens.

    `samples`: the row reaches the newest token as of its planning, so that the next one is drawn.
    """

    live: Live
    start: int
    tokens: int
    draft: Draft
    samples: bool
    copies: tuple[PageCopy, ...] = ()
    draft_limit: int = 0
