"""One step's work as plain host integers: no torch, no references to engine state that can move.

Prefill, chunked prefill, decode and verification are one kind of row: "run these new tokens of
this request against its committed context". R rows, T tokens, P pages in a table row.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, NewType

import numpy as np
from numpy.typing import NDArray

from interlock.core.request import RequestId, SamplingParams, TokenLogprobs

if TYPE_CHECKING:
    from torch import Tensor

    from interlock.core.logit_edits import NodeEdits

PageId = NewType("PageId", int)
Ints = NDArray[np.int64]
Seeds = NDArray[np.uint64]
Pages = NDArray[np.int32]
Words = NDArray[np.int32]
"""A mask of tokens: token t may come when bit t % 32 of word t // 32 is set."""


@dataclass(frozen=True)
class Draft:
    """Candidate tokens after the last committed token (the anchor).

    `parents[i]` is the candidate that token i follows, -1 for the anchor; None means a chain.
    Parents come before children, and siblings are in the order in which they are tried. An empty
    draft is allowed.

    `laws` [nodes, vocab], on the device, has the law that each candidate was drawn from (after
    what earlier siblings took out of it); None: candidates were chosen, not drawn. Nothing between
    two steps reads it. `confidence[i]` estimates the chance that candidate i is accepted once its
    parent is, from what was known before it was drawn; empty: the drafter gives no estimates.
    """

    tokens: tuple[int, ...] = ()
    parents: tuple[int, ...] | None = None
    laws: "Tensor | None" = field(default=None, compare=False, repr=False)
    confidence: tuple[float, ...] = field(default=(), compare=False)

    def first(self, count: int) -> "Draft":
        """The first `count` candidates: any prefix is a draft, for parents precede children."""
        if len(self.tokens) <= count:
            return self
        return Draft(
            self.tokens[:count],
            None if self.parents is None else self.parents[:count],
            None if self.laws is None else self.laws[:count],
            self.confidence[:count],
        )

    def depths(self) -> tuple[int, ...]:
        """Distance of each candidate from the anchor, 1 for its children."""
        if self.parents is None:
            return tuple(range(1, len(self.tokens) + 1))
        depths: list[int] = []
        for parent in self.parents:
            depths.append(1 if parent < 0 else depths[parent] + 1)
        return tuple(depths)


NO_DRAFT = Draft()


@dataclass(frozen=True)
class PageCopy:
    """Copy all rows of page `source` to page `target` in every plane of one table."""

    table: int
    source: PageId
    target: PageId


@dataclass(frozen=True)
class Batch:
    """The rows of one step, flat.

    Row r owns tokens row_offsets[r] .. row_offsets[r + 1]; its first token is entry `starts[r]` of
    the request, so entry starts[r] + j of the page table receives token j. `positions` differ from
    entries only in draft trees. `drafts` has, by row, the drafts whose tokens end the rows that
    verify one (the token before them is the anchor). Row r wants logits for its last
    `logit_counts[r]` tokens: 0 for a chunk that is not the last, 1 for prefill and decode,
    1 + drafts for verification.
    `request_ids` are the engine's own, one a sample. `copies` run first, in order.
    `tables[t][slots[r]]` is the page list of row r in page table t; entries past the row's pages
    are unspecified. `adapters[r]` is the number of row r's adapter, -1 for none; empty: none has.
    """

    request_ids: tuple[RequestId, ...]
    tokens: Ints
    positions: Ints
    row_offsets: Ints
    starts: Ints
    logit_counts: Ints
    drafts: Mapping[int, Draft]
    slots: Ints
    tables: tuple[Pages, ...]
    page_size: int
    copies: tuple[PageCopy, ...] = ()
    adapters: tuple[int, ...] = ()

    @property
    def num_rows(self) -> int:
        """Requests in this step."""
        return len(self.request_ids)

    def draft(self, row: int) -> Draft:
        """The draft that a row verifies; an empty one where it has none."""
        return self.drafts.get(row, NO_DRAFT)

    @property
    def num_drafts(self) -> Ints:
        """Candidates that each row verifies."""
        return np.maximum(self.logit_counts - 1, 0)

    @property
    def num_tokens(self) -> int:
        """Tokens that the target runs in this step."""
        return int(self.row_offsets[-1])


@dataclass(frozen=True)
class StepPlan:
    """What the executor is asked to run: a batch, and how the tokens of its rows are drawn.

    Columns have one entry a row: the request's parameters and seed, the tokens it may still emit
    (this step included), the candidates that a drafter may propose after this step, and the entry
    after the last one that it may write for that. `params` is
    the same object as in the step before while the rows are the same.

    Mappings go by row and hold the rows that have something: `next_tokens` the known token after a
    chunk that is not the last of its prompt (drafters pair with it), `edits` what changes the
    row's logits, `scored` the prompt tokens after the row's first ones whose laws are asked for.
    """

    step_id: int
    batch: Batch
    now_s: float
    params: tuple[SamplingParams, ...]
    seeds: Seeds
    tokens_left: Ints
    draft_limits: Ints
    draft_ends: Ints
    next_tokens: Mapping[int, int] = field(default_factory=dict)
    edits: Mapping[int, "NodeEdits"] = field(default_factory=dict)
    scored: Mapping[int, tuple[int, ...]] = field(default_factory=dict)


class StepTimes(NamedTuple):
    """Seconds of a step: the target's pass with verification, the drafter's pass over committed
    rows, and its passes for new candidates (of drafters on the host: for those of this step)."""

    target_s: float = 0.0
    catch_up_s: float = 0.0
    draft_s: float = 0.0


NO_TIMES = StepTimes()


@dataclass(slots=True)
class StepResult:
    """What the rows gave.

    Row r gave tokens[token_offsets[r]] .. tokens[token_offsets[r + 1] - 1]: the accepted drafts
    followed by one token of the target; none for a chunk that is not the last, or with an error.

    Mappings go by row and hold the rows that have something: `kept_paths` lists the accepted
    candidates by index into the draft (ancestors first), `drafts` proposes the next step's
    candidates, `errors` fails this request alone, `logprobs` has one entry a token, and
    `prompt_logprobs` one for each token of `StepPlan.scored`.
    `duration_s` is set by executors that run on a virtual clock, `times` says where the time of
    the step went, as far as the executor knows. `draws` has, for rows with a draft and where the
    drafter wants it, the token that the target draws after the anchor and after each candidate.
    `padding` counts the tokens that ran beside the batch's own to fill up a fixed shape.
    """

    step_id: int
    tokens: Ints
    token_offsets: Ints
    kept_paths: dict[int, tuple[int, ...]] = field(default_factory=dict)
    drafts: dict[int, Draft] = field(default_factory=dict)
    errors: dict[int, str] = field(default_factory=dict)
    logprobs: dict[int, tuple[TokenLogprobs, ...]] = field(default_factory=dict)
    prompt_logprobs: dict[int, tuple[TokenLogprobs, ...]] = field(default_factory=dict)
    duration_s: float | None = None
    times: StepTimes = NO_TIMES
    draws: dict[int, tuple[int, ...]] = field(default_factory=dict)
    padding: int = 0

    @classmethod
    def of_rows(cls, step_id: int, tokens: Sequence[Sequence[int]]) -> "StepResult":
        """A result with these tokens for each row, and nothing else yet."""
        ends = np.cumsum([0, *map(len, tokens)], dtype=np.int64)
        return cls(step_id, np.array([t for row in tokens for t in row], dtype=np.int64), ends)

    def tokens_of(self, row: int) -> tuple[int, ...]:
        """The tokens that one row gave."""
        first, end = self.token_offsets[row : row + 2]
        return tuple(self.tokens[first:end].tolist())


@dataclass(frozen=True)
class StepDecision:
    """What one step ran, and when on the run's clock: rows of (request index, tokens, drafts)."""

    step: int
    now_s: float
    end_s: float
    rows: tuple[tuple[int, int, int], ...]
