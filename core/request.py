"""What a user asks for and what comes back."""

import json
import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from typing import Any, Literal, NewType, get_args

from interlock.core.capabilities import EditsLogits, FollowsGrammars, MakesText, ReturnsLogprobs
from interlock.core.errors import RequestError
from interlock.core.options import option

RequestId = NewType("RequestId", int)
MOST_STOPS, MOST_STOP_LENGTH = 16, 1000
"""Stop strings of a request, and characters of one."""
MOST_SAMPLES = 1024
"""Of one request."""

MOST = sys.float_info.max

GrammarKind = Literal["json_schema", "regex", "grammar"]
"""JSON Schema, a regular expression for the whole output, or EBNF rules from `root` on."""
GRAMMARS: tuple[GrammarKind, ...] = get_args(GrammarKind)

_edit = partial(option, needs=EditsLogits())
_grammar = partial(option, None, needs=FollowsGrammars())


@dataclass(frozen=True)
class SamplingParams:
    """How tokens are drawn; the order in which the fields apply is written in core/verifier.py.

    temperature 0 is argmax (lowest id on ties). top_k 0 and top_p 1 and min_p 0 switch a filter
    off; top_p 0 keeps one token. `logprobs` asks for that many top log-probabilities (raw law)
    beside the chosen token's, `prompt_logprobs` for as many beside each prompt token's. `seed` None
    derives one from the run's seed and the request's index. `n` samples are given out; each draws
    from a stream of its own (`sample_seed` in core/streams.py). With `best_of` above n that many
    run, and those n whose tokens have the highest mean log-probability (raw law) are given out when
    all have ended. `logit_bias` may be given as a mapping; it is kept as pairs (token id, bias). At
    most one of json_schema (a mapping becomes text), regex and grammar is given.
    """

    temperature: float = option(0.0, "0: the most likely token")
    top_k: int = option(0, "draw from the k most likely tokens; 0: off")
    top_p: float = option(1.0, "draw from the most likely tokens of this total probability")
    min_p: float = option(0.0, "drop tokens below this share of the most likely one's probability")
    seed: int | None = option(None, "seed of every request; null: from the run's seed and index")
    max_tokens: int = option(64, "output limit")
    stop_token_ids: tuple[int, ...] = option((), "token ids that end the output")
    ignore_eos: bool = option(False, "do not stop at the model's end tokens")
    logprobs: int | None = option(
        None, "top log-probabilities to return per token; null: none", needs=ReturnsLogprobs()
    )
    stop: tuple[str, ...] = option(
        (), "texts that end the output, which is cut before them", needs=MakesText()
    )
    include_stop: bool = option(False, "cut the output's text behind what ended it, not before")
    detokenize: bool = option(
        False, "give the output's text as well as its tokens", needs=MakesText()
    )
    echo: bool = option(
        False, "give the prompt back before the output, with log-probabilities if logprobs is set"
    )
    repetition_penalty: float = _edit(
        1.0, "above 1 makes tokens of prompt and output rarer; 1: off"
    )
    presence_penalty: float = _edit(0.0, "off the logit of each token in the output; -2 to 2")
    frequency_penalty: float = _edit(0.0, "off a token's logit for each time it is in the output")
    min_tokens: int = _edit(0, "output tokens before which nothing that ends the output can come")
    logit_bias: tuple[tuple[int, float], ...] | None = _edit(
        None, "added to logits: {id: -100 to 100, ...}; null: nothing"
    )
    prompt_logprobs: int | None = option(
        None,
        "top log-probabilities to return per prompt token; null: none",
        needs=ReturnsLogprobs(),
    )
    n: int = option(1, "samples of each prompt")
    best_of: int | None = option(
        None, "run so many samples and return the n likeliest; null: n", needs=ReturnsLogprobs()
    )
    allowed_token_ids: tuple[int, ...] | None = _edit(None, "the only ids to draw from; null: all")
    banned_token_ids: tuple[int, ...] = _edit((), "token ids that can never come")

    json_schema: str | None = _grammar("JSON Schema that the output is an instance of, as text")
    regex: str | None = _grammar("regular expression that the whole output matches")
    grammar: str | None = _grammar("EBNF grammar of the output, from its rule `root` on")

    def __post_init__(self) -> None:
        if isinstance(self.json_schema, Mapping):
            object.__setattr__(self, "json_schema", json.dumps(self.json_schema))
        if isinstance(self.stop, str):
            object.__setattr__(self, "stop", (self.stop,))
        if isinstance(self.logit_bias, Mapping):
            pairs = tuple((_id(key), bias) for key, bias in self.logit_bias.items())
            object.__setattr__(self, "logit_bias", pairs)

    @property
    def samples(self) -> int:
        """How many samples run."""
        return self.n if self.best_of is None else self.best_of

    @property
    def selects(self) -> bool:
        """True when more samples run than are given out."""
        return self.samples > self.n

    def problems(self, vocab_size: int | None = None) -> list[str]:
        """Every field that is out of range, each named with its value and what is allowed."""
        most = self.max_tokens if _is_int(self.max_tokens) else math.inf
        ids = f"token ids from 0 to {vocab_size - 1}" if vocab_size else "token ids >= 0"
        allowed = self.allowed_token_ids
        checks = [
            (_within(self.temperature, 0, MOST), "temperature", "a finite number >= 0"),
            (_is_int(self.top_k) and self.top_k >= 0, "top_k", "an integer >= 0 (0: off)"),
            (_within(self.top_p, 0, 1), "top_p", "a number from 0 to 1"),
            (_within(self.min_p, 0, 1), "min_p", "a number from 0 to 1"),
            (self.seed is None or (_is_int(self.seed) and 0 <= self.seed < 2**64),
             "seed", "an integer from 0 to 2**64 - 1, or null"),
            (_is_int(self.max_tokens) and self.max_tokens >= 1, "max_tokens", "an integer >= 1"),
            (self.logprobs is None or (_is_int(self.logprobs) and 0 <= self.logprobs <= 100),
             "logprobs", "an integer from 0 to 100, or null"),
            (self.prompt_logprobs is None
             or (_is_int(self.prompt_logprobs) and 0 <= self.prompt_logprobs <= 100),
             "prompt_logprobs", "an integer from 0 to 100, or null"),
            (_is_int(self.n) and 1 <= self.n <= MOST_SAMPLES,
             "n", f"an integer from 1 to {MOST_SAMPLES}"),
            (self.best_of is None or (_is_int(self.best_of) and _is_int(self.n)
                                      and self.n <= self.best_of <= MOST_SAMPLES),
             "best_of", f"an integer from n to {MOST_SAMPLES}, or null"),
            (_are_ids(self.stop_token_ids, vocab_size), "stop_token_ids", ids),
            (_are_stops(self.stop), "stop",
             f"up to {MOST_STOPS} texts of 1 to {MOST_STOP_LENGTH} characters"),
            *((isinstance(getattr(self, name), bool), name, "true or false")
              for name in ("ignore_eos", "include_stop", "detokenize", "echo")),
            (_within(self.repetition_penalty, 0.01, 100),
             "repetition_penalty", "a number from 0.01 to 100 (1: off)"),
            (_within(self.presence_penalty, -2, 2), "presence_penalty", "a number from -2 to 2"),
            (_within(self.frequency_penalty, -2, 2), "frequency_penalty", "a number from -2 to 2"),
            (_is_int(self.min_tokens) and 0 <= self.min_tokens <= most,
             "min_tokens", f"an integer from 0 to max_tokens={self.max_tokens}"),
            (self.logit_bias is None or _is_bias(self.logit_bias, vocab_size),
             "logit_bias", f"biases from -100 to 100 of different {ids}"),
            (allowed is None or _are_ids(allowed, vocab_size), "allowed_token_ids", ids),
            (_are_ids(self.banned_token_ids, vocab_size), "banned_token_ids", ids),
            *((text is None or (isinstance(text, str) and text.strip()), kind, "a text, or null")
              for kind, text in ((kind, getattr(self, kind)) for kind in GRAMMARS)),
        ]  # fmt: skip
        found = [
            f"{name}={getattr(self, name)!r:.100} is not {what}"
            for ok, name, what in checks
            if not ok
        ]
        kinds = [kind for kind in GRAMMARS if getattr(self, kind) is not None]
        if len(kinds) > 1:
            found.append(f"{' and '.join(kinds)} cannot both hold; ask for one of them")
        return found or self._nothing_left(vocab_size)

    def _nothing_left(self, vocab_size: int | None) -> list[str]:
        allowed, banned = self.allowed_token_ids, set(self.banned_token_ids)
        if len(banned) < (vocab_size or math.inf) if allowed is None else set(allowed) - banned:
            return []
        return ["allowed_token_ids and banned_token_ids leave no token that could come"]


def _within(value: Any, least: float, most: float) -> bool:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return number and least <= value <= most


def _are_ids(value: Any, vocab_size: int | None) -> bool:
    """A tuple of token ids."""
    return isinstance(value, tuple) and all(
        _is_int(token) and 0 <= token < (vocab_size or math.inf) for token in value
    )


def _is_bias(value: Any, vocab_size: int | None) -> bool:
    """Pairs of different token ids and biases."""
    if not isinstance(value, tuple) or not all(isinstance(p, tuple) and len(p) == 2 for p in value):
        return False
    ids = tuple(token for token, _ in value)
    sound = _are_ids(ids, vocab_size) and len(set(ids)) == len(ids)
    return sound and all(_within(bias, -100, 100) for _, bias in value)


def _id(key: Any) -> Any:
    """A token id that JSON wrote as a text."""
    return int(key) if isinstance(key, str) and key.isdecimal() and len(key) < 20 else key


def _are_stops(value: Any) -> bool:
    listed = isinstance(value, tuple) and len(value) <= MOST_STOPS
    return listed and all(isinstance(s, str) and 1 <= len(s) <= MOST_STOP_LENGTH for s in value)


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


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
    sampling: SamplingParams = SamplingParams()
    arrival_s: float = 0.0
    tenant: str = ""
    priority: int = 0
    prompt_text: str | None = None
    hashed_prompt: HashedPrompt | None = None
    adapter: str | None = None
    conversation: int | None = None
    turn: int | None = None
    """Of its conversation, from 0: for reports."""

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


@dataclass
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


@dataclass(frozen=True)
class RequestOutput:
    """What one step gave one sample of a request: new tokens, and the record when it ended.

    `id` is the submitted request's, of whatever sample. A request that was never served ends in
    one record, of sample 0; any other in one record a sample.
    `text` is new text that is final; all of them join to the record's. The first output of a
    sample with `echo` holds its `prompt_token_ids`, and its text begins with the prompt's.
    """

    id: RequestId
    index: int
    new_token_ids: tuple[int, ...]
    finished: RequestRecord | None = None
    text: str = ""
    prompt_token_ids: tuple[int, ...] = ()
    sample: int = 0


def refuse(request: Request, reason: str) -> RequestError:
    """The error of a request that cannot be served."""
    return RequestError(f"request {request.index}: {reason}")
