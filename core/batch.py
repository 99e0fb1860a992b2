"""One step's work as plain host integers: no torch, no references to engine state that can move.

Prefill, chunked prefill, decode and verification are one kind of row: "run these new tokens of
this request against its committed context". R rows, T tokens, P pages in a table row.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, NewType

import numpy as np
from numpy.typing import NDArray

from interlock.core.request import RequestId, SamplingParams, TokenLogprobs

if TYPE_CHECKING:
    from interlock.core.logit_edits import NodeEdits

PageId = NewType("PageId", int)
Ints = NDArray[np.int64]
Pages = NDArray[np.int32]
Words = NDArray[np.int32]
"""A mask of tokens: token t may come when bit t % 32 of word t // 32 is set."""


@dataclass(frozen=True)
class Draft:
    """Candidate tokens after the last committed token (the anchor).

    `parents[i]` is the candidate that token i follows, -1 for the anchor; None means a chain.
    Parents come before children. An empty draft is allowed.
    """

    tokens: tuple[int, ...] = ()
    parents: tuple[int, ...] | None = None

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
    entries only in draft trees. `drafts[r]` is the draft whose tokens end the row (the token before
    them is the anchor). Row r wants logits for its last `logit_counts[r]` tokens: 0 for a chunk
    that is not the last, 1 for prefill and decode, 1 + drafts for verification.
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
    drafts: tuple[Draft, ...]
    slots: Ints
    tables: tuple[Pages, ...]
    page_size: int
    copies: tuple[PageCopy, ...] = ()
    adapters: tuple[int, ...] = ()

    @property
    def num_rows(self) -> int:
        """Requests in this step."""
        return len(self.request_ids)

    @property
    def num_tokens(self) -> int:
        """Tokens that the target runs in this step."""
        return int(self.row_offsets[-1])


class RowSampling(NamedTuple):
    """How one row's tokens are drawn: the request's parameters, seed and what may follow."""

    params: SamplingParams
    seed: int
    draft_limit: int
    """Candidates that a drafter may propose after this step."""
    next_tokens: tuple[int, ...] = ()
    """Known token after a chunk that is not the last of its prompt (drafters pair with it)."""
    tokens_left: int = 0
    """Tokens this request may still emit, this step included."""
    edits: "NodeEdits | None" = None
    """What changes the logits of its rows; None: nothing."""
    scored: tuple[int, ...] = ()
    """Prompt tokens that follow the row's first ones, one each, whose laws are asked for."""


@dataclass(frozen=True)
class StepPlan:
    """What the executor is asked to run."""

    step_id: int
    batch: Batch
    sampling: tuple[RowSampling, ...]
    now_s: float


@dataclass(slots=True)
class RowResult:
    """What one row gave.

    `tokens` are the accepted drafts followed by one token of the target; empty for a chunk that is
    not the last. `kept_path` lists the accepted candidates by index into the draft (ancestors
    first). `draft` proposes the next step's candidates. `error` fails this request alone.
    `prompt_logprobs` answers `RowSampling.scored`, one for each token.
    """

    tokens: tuple[int, ...] = ()
    kept_path: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprobs, ...] = ()
    draft: Draft = NO_DRAFT
    error: str | None = None
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()


@dataclass(slots=True)
class StepResult:
    """Results in row order. `duration_s` is set by executors that run on a virtual clock."""

    step_id: int
    rows: list[RowResult]
    duration_s: float | None = None


@dataclass(frozen=True)
class StepDecision:
    """What one step ran, and when on the run's clock: rows of (request index, tokens, drafts)."""

    step: int
    now_s: float
    end_s: float
    rows: tuple[tuple[int, int, int], ...]
