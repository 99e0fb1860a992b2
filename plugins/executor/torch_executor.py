"""The torch executor: target pass, verification and draft passes of one step on a real model.

Legend: T tokens of the step, N logits rows, E hidden size.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from interlock.core.batch import Batch, Ints, StepPlan, StepResult, StepTimes
from interlock.core.component import BuildContext
from interlock.core.executor import Executor, ModelParts
from interlock.core.model import Taps
from interlock.core.planes import make_attend
from interlock.core.request import TokenLogprobs
from interlock.core.tier import KVTier
from interlock.core.transfers import Transfers
from interlock.core.verifier import Verifier
from interlock.plugins.executor import TorchConfig
from interlock.plugins.executor.batches import attention_batch
from interlock.plugins.executor.committed import rows_to_take_in
from interlock.plugins.executor.deferred import Deferred
from interlock.plugins.executor.drafting import StepContext
from interlock.plugins.executor.moves import copy_page, move_entries
from interlock.plugins.executor.payloads import Payloads
from interlock.plugins.executor.sampling import SampledRows
from interlock.plugins.executor.transfers import ThreadTransfers

SCORED_ROWS = 128
"""Rows of logits held at once for prompt_logprobs, times the vocabulary."""


class TorchExecutor(Executor):
    """Runs plans eagerly with torch on one device."""

    def __init__(self, parts: ModelParts) -> None:
        self._decoder = parts.decoder
        self._backend = parts.attention
        self._planes = parts.planes
        self._verifier = parts.verifier
        self.drafter = parts.drafter
        self._deferred: Deferred | None = None
        if parts.drafter is not None:
            self._deferred = Deferred(parts.drafter, parts.ranks.size)
        self._device = parts.device
        self._adapters = parts.adapters
        self._ranks = parts.ranks
        self._wants_draws = parts.wants_draws
        self._parts = parts
        self._clock_s = parts.clock_s

    @torch.inference_mode()
    def execute(self, plan: StepPlan) -> StepResult:
        """See Executor."""
        batch, begin_s = plan.batch, self._clock_s()
        for copy in batch.copies:
            copy_page(self._planes, copy.table, copy.source, copy.target)
        passed = self._target(batch)
        result = self._verify(plan, passed.features_TE)
        result.padding = passed.padding
        self._score_prompts(plan, passed.features_TE, result)
        self._compact_trees(batch, result)
        target_s, catch_up_s = self._clock_s() - begin_s, 0.0
        if self.drafter is not None:
            catch_up_s = self._draft(plan, passed, result)
        draft_s = self._clock_s() - begin_s - target_s - catch_up_s
        result.times = StepTimes(target_s, catch_up_s, draft_s)
        return result

    def payload_bytes(self, page_size: int) -> int:
        """See Executor."""
        return Payloads(self._planes).size

    def transfers(self, tiers: Sequence[KVTier], page_size: int) -> Transfers:
        """See Executor."""
        return ThreadTransfers(Payloads(self._planes), tiers, self._device)

    def _taps(self) -> Taps:
        return Taps(self.drafter.taps if self.drafter else ())

    def _target(self, batch: Batch) -> "Passed":
        """The target pass."""
        tokens_T = torch.from_numpy(batch.tokens).to(self._device)
        view = attention_batch(batch, self._device)
        attend = make_attend(self._backend, self._backend.plan(view), self._planes)
        taps = self._taps()
        with self._adapters.selected(_adapter_of(batch, self._device)):
            features_TE = self._decoder.forward(tokens_T, view.positions_T, attend, taps)
        return Passed(features_TE, taps.outputs())

    def _verify(self, plan: StepPlan, features_TE: Tensor) -> StepResult:
        """Tokens for every row that wants logits, decided on rank 0."""
        wanted = _wanted(plan.batch)
        result = StepResult.of_rows(plan.step_id, [()] * plan.batch.num_rows)
        if not wanted.rows:
            return result
        features_NE = features_TE[torch.from_numpy(wanted.flat).to(self._device)]
        logits_NV = self._decoder.logits(features_NE)
        if self._verifier is not None:
            result = self._accept(self._verifier, plan, wanted, logits_NV)
        if self._ranks.size == 1:
            return result
        mine = _bits(features_NE)
        first, decided = self._ranks.from_first((mine, result))
        self._ranks.require_same(f"in step {plan.step_id} features of sum", mine, first)
        return result if self._verifier is not None else _followed(decided)

    def _accept(
        self, verifier: Verifier, plan: StepPlan, wanted: "_Wanted", logits_NV: Tensor
    ) -> StepResult:
        """What the rows that want logits give.

        Unusable logits fail a request only where they stand at its newest token: those of a
        rejected candidate matter to nobody, and an accepted one with them becomes the newest token
        of the next step, as without drafts.
        """
        batch = plan.batch
        params = [plan.params[r] for r in wanted.row_of]
        owned = zip(wanted.rows, wanted.first, strict=True)
        edits = {first: plan.edits[r] for r, first in owned if r in plan.edits}
        seeds, positions = plan.seeds[wanted.row_of], batch.positions[wanted.flat] + 1
        laws = SampledRows(logits_NV, params, seeds, positions, edits)
        bad = laws.bad_rows()
        verdicts = verifier.accept([batch.draft(r) for r in wanted.rows], laws)
        given: list[tuple[int, ...]] = [()] * batch.num_rows
        drawn = laws.sample() if self._wants_draws and batch.drafts else []
        paths, errors, logprobs, draws = {}, {}, {}, {}
        for r, verdict, first in zip(wanted.rows, verdicts, wanted.first, strict=True):
            drafted = batch.draft(r).tokens
            nodes = [first, *(first + 1 + node for node in verdict.path)]
            tokens = [*(drafted[node] for node in verdict.path), verdict.token]
            sound = next((i for i, node in enumerate(nodes) if node in bad), len(nodes))
            if sound == 0:
                errors[r] = bad[first]
                continue
            given[r] = tuple(tokens[:sound])
            if drawn and drafted:
                draws[r] = tuple(drawn[first : first + 1 + len(drafted)])
            if verdict.path:
                paths[r] = verdict.path[: sound - 1]
            top = params[first].logprobs
            if top is not None:
                logprobs[r] = laws.token_logprobs(nodes[:sound], given[r], top)
        result = StepResult.of_rows(plan.step_id, given)
        result.kept_paths, result.errors, result.logprobs = paths, errors, logprobs
        result.draws = draws
        return result

    def _score_prompts(self, plan: StepPlan, features_TE: Tensor, result: StepResult) -> None:
        """Raw laws of the prompt tokens that are asked for, a few rows of logits at a time."""
        for r, scored in plan.scored.items():
            begin, found = int(plan.batch.row_offsets[r]), list[TokenLogprobs]()
            for first in range(0, len(scored), SCORED_ROWS):
                tokens = scored[first : first + SCORED_ROWS]
                count = len(tokens)
                at = begin + first
                logits_NV = self._decoder.logits(features_TE[at : at + count])
                laws = SampledRows(logits_NV, [plan.params[r]] * count, [0] * count, [0] * count)
                if bad := laws.bad_rows():
                    result.errors[r] = min(bad.items())[1]
                    break
                top = plan.params[r].prompt_logprobs or 0
                found += laws.token_logprobs(range(count), tokens, top)
            result.prompt_logprobs[r] = tuple(found)

    def _compact_trees(self, batch: Batch, result: StepResult) -> None:
        """Move the rows of accepted tree nodes to where the committed tokens belong."""
        for r, path in result.kept_paths.items():
            draft = batch.draft(r)
            if draft.parents is None or path == tuple(range(len(path))):
                continue
            length = int(batch.row_offsets[r + 1] - batch.row_offsets[r])
            first = int(batch.starts[r]) + length - len(draft.tokens)
            for table, pages in enumerate(batch.tables):
                move_entries(
                    self._planes,
                    table,
                    pages[batch.slots[r]],
                    [first + node for node in path],
                    [first + place for place in range(len(path))],
                )

    def _draft(self, plan: StepPlan, passed: "Passed", result: StepResult) -> float:
        """Let the drafter take in the committed rows and propose; seconds of the former."""
        assert self.drafter is not None
        assert self._deferred is not None
        begin_s = self._clock_s()
        rows = rows_to_take_in(
            plan, result, self.drafter, self._deferred, passed.features_TE, passed.taps
        )
        if rows is None:
            return self._clock_s() - begin_s
        context = StepContext(self._parts, plan.batch, rows)
        drafts = self.drafter.propose(rows, context)
        if self._ranks.size > 1:
            bare = [replace(draft, laws=None) for draft in drafts]
            first = self._ranks.from_first(bare)
            self._ranks.require_same(f"after step {plan.step_id} drafts", bare, first)
        result.drafts = {r: draft for r, draft in enumerate(drafts) if draft.tokens}
        return (context.caught_up_s or self._clock_s()) - begin_s


class Passed(NamedTuple):
    """What the target's pass gave."""

    features_TE: Tensor
    """Of the batch's tokens."""
    taps: tuple[Tensor, ...] = ()
    """[T, E] of the layers that the drafter taps."""
    padding: int = 0
    """Tokens that ran beside the batch's own."""


def _followed(decided: StepResult) -> StepResult:
    """Rank 0's decisions as another rank's own: what it still adds concerns itself alone."""
    return replace(decided, errors=dict(decided.errors), prompt_logprobs={}, drafts={})


def _adapter_of(batch: Batch, device: torch.device) -> Tensor | None:
    """Each token's adapter, if any row has one."""
    if not batch.adapters:
        return None
    lengths = torch.from_numpy(np.diff(batch.row_offsets))
    return torch.tensor(batch.adapters).repeat_interleave(lengths).to(device)


def _bits(features_NE: Tensor) -> int:
    """The sum of the entries' bit patterns: equal for equal features, NaNs included."""
    words = {2: torch.int16, 4: torch.int32, 8: torch.int64}[features_NE.element_size()]
    return int(features_NE.view(words).sum(dtype=torch.int64))


class _Wanted(NamedTuple):
    """Rows that want logits; of each row of logits its token and its row of the batch."""

    rows: list[int]
    first: list[int]
    """Each row's first row of logits."""
    flat: Ints
    row_of: Ints


def _wanted(batch: Batch) -> _Wanted:
    rows = np.flatnonzero(batch.logit_counts)
    counts = batch.logit_counts[rows]
    first = np.cumsum(counts) - counts
    begins = batch.row_offsets[1:][rows] - counts
    flat = np.arange(counts.sum()) + np.repeat(begins - first, counts)
    return _Wanted(rows.tolist(), first.tolist(), flat, np.repeat(rows, counts))


def build(_config: TorchConfig, context: BuildContext) -> TorchExecutor:
    """See Component."""
    assert context.parts is not None, "the torch executor needs a model"
    return TorchExecutor(context.parts)
