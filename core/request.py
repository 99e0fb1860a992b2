"""What a user asks for and what comes back."""

from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple, NewType

from interlock.core.errors import RequestError
from interlock.core.retention import Retention
from interlock.core.sampling_params import SamplingParams as SamplingParams

RequestId = NewType("RequestId", int)
DEFAULTS = SamplingParams()


@dataclass(frozen=True)
class HashedPrompt:
    """A prompt known only by the ids of its blocks (trace replay).

    Token j of block `block_ids[i]` stands for itself: equal block ids mean equal tokens.
    """

    block_ids: tuple[int, ...]
    block_tokens: int
    num_tokens: int


@dataclass(frozen=True)
class Request:
    """One prompt and how to continue it.

    `index` is its place in the workload (and in the records), `arrival_s` its scheduled arrival on
    the run's clock. A larger `priority` is more important. `adapter` names one of the run's. Either
    `prompt_token_ids` or `hashed_prompt` is set; `prompt_text` is what the ids were encoded from,
    for reports.
    """

    index: int
    prompt_token_ids: tuple[int, ...] = ()
    sampling: SamplingParams = DEFAULTS
    arrival_s: float = 0.0
    tenant: str = ""
    priority: int = 0
    prompt_text: str | None = None
    hashed_prompt: HashedPrompt | None = None
    adapter: str | None = None
    conversation: int | None = None
    turn: int | None = None
    """Of its conversation, from 0: for reports."""
    retention: Retention | None = None
    """How long its cached pages should stay, for eviction policies that follow it."""

    @property
    def num_prompt_tokens(self) -> int:
        """Length of the prompt in tokens."""
        return self.hashed_prompt.num_tokens if self.hashed_prompt else len(self.prompt_token_ids)


class Status(Enum):
    """Where a request is in its life."""

    WAITING = "waiting"
    RUNNING = "running"
    PREEMPTED = "preempted"
    FINISHED = "finished"
    ABORTED = "aborted"
    FAILED = "failed"


class FinishReason(Enum):
    """Why a request ended."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    ERROR = "error"


@dataclass(frozen=True)
class TokenLogprobs:
    """Raw log-probabilities at one position: the chosen token's and the `top` most likely ones."""

    chosen: float
    top: tuple[tuple[int, float], ...]


@dataclass(slots=True)
class RequestRecord:
    """Everything measured about one sample of a request; times are seconds on the run's clock.

    `seed` is the sample's own: a request with n=1 and this seed has the same tokens. A `dropped`
    sample ran for `best_of` and was not given out. `shared_tokens` of its prompt were computed by
    another sample whose pages it took over; `prompt_logprobs` (null for the first token) stand in
    the record of sample 0.
    """

    index: int
    sample: int = 0
    status: Status = Status.WAITING
    finish_reason: FinishReason | None = None
    beam_score: float | None = None
    """Of a beam search: the output's log-probability over its length to the length penalty."""
    error: str | None = None
    seed: int | None = None
    turn: int | None = None
    num_prompt_tokens: int = 0
    prompt_token_ids: tuple[int, ...] = ()
    """Of a request that asked for `echo`."""
    output_token_ids: list[int] = field(default_factory=list)
    text: str | None = None
    """Of a request that asked for text (`stop`, `detokenize`, `echo`), once it ended."""
    stopped_by: str | None = None
    """The stop string that ended it."""
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprobs | None] = field(default_factory=list)
    dropped: bool = False
    arrival_s: float = 0.0
    admitted_s: float | None = None
    finished_s: float | None = None
    chunk_times_s: list[float] = field(default_factory=list)
    chunk_sizes: list[int] = field(default_factory=list)
    cached_tokens: int = 0
    shared_tokens: int = 0
    drafted_tokens: int = 0
    accepted_tokens: int = 0
    draft_rounds: int = 0
    target_passes: int = 0
    """Decode and verify rows; the rows of a prefill (also after a preemption) are none."""
    pass_tokens: int = 0
    """Tokens emitted by those."""
    recomputed_tokens: int = 0
    preemptions: int = 0


class RequestOutput(NamedTuple):
    """What one step gave one sample of a request: new tokens, and the record when it ended.

    `id` is the submitted request's, of whatever sample. A request that was never served ends in
    one record, of sample 0; any other in one record a sample.
    `text` is new text that is final; all of them join to the record's. The first output of a
    sample with `echo` holds its `prompt_token_ids`, and its text begins with the prompt's.
    """

    id: RequestId
    index: int  # type: ignore[assignment]  # instead of a tuple's method
    new_token_ids: tuple[int, ...]
    finished: RequestRecord | None = None
    text: str = ""
    prompt_token_ids: tuple[int, ...] = ()
    sample: int = 0


def refuse(request: Request, reason: str) -> RequestError:
    """The error of a request that cannot be served."""
    return RequestError(f"request {request.index}: {reason}")
