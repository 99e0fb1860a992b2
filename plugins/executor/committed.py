"""What a step committed, and which of it a feature drafter takes in now.

Legend: T tokens of the step, R its rows, N committed tokens, E hidden size, O of
all outputs together.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from interlock.core.batch import Ints, StepPlan, StepResult
from interlock.core.drafter import Drafter, DraftRows
from interlock.plugins.executor.deferred import Deferred, Flags, beside, on


class Committed(NamedTuple):
    """What the rows of a step committed: counts_R tokens each, of which flat_N are the places in
    the batch and following_N the tokens after them; limits_R candidates are wanted behind them."""

    counts_R: Ints
    limits_R: Ints
    flat_N: Ints
    following_N: Ints

    @staticmethod
    def of(plan: StepPlan, result: StepResult, drafter: Drafter) -> "Committed":
        """Of a step; rows with an error commit nothing."""
        if _one_each(plan, result, drafter):
            limits_R, rows_R = plan.draft_limits, np.arange(plan.batch.num_rows)
            if limits_R.any():
                left_R = plan.tokens_left - 2
                few_R = left_R < (drafter.depth or drafter.num_drafts)
                limits_R = np.where(few_R, np.minimum(limits_R, np.maximum(left_R, 0)), limits_R)
            return Committed(np.ones_like(rows_R), limits_R, rows_R, result.tokens)
        flat, following, counts, limits = list[int](), list[int](), list[int](), list[int]()
        for r in range(plan.batch.num_rows):
            kept, limit = _committed(plan, r, result, drafter, following)
            flat += kept
            counts.append(len(kept))
            limits.append(limit)
        columns = counts, limits, flat, following
        return Committed(*(np.array(column, dtype=np.int64) for column in columns))


def _one_each(plan: StepPlan, result: StepResult, drafter: Drafter) -> bool:
    """Whether every row decoded one token, far from the last position that the drafter handles."""
    batch, most = plan.batch, drafter.max_positions
    if (
        batch.drafts
        or result.errors
        or not batch.num_rows == batch.num_tokens == len(result.tokens)
    ):
        return False
    deepest = drafter.depth or drafter.num_drafts
    return most is None or int(batch.starts.max()) + 1 + deepest <= most


def _committed(
    plan: StepPlan, r: int, result: StepResult, drafter: Drafter, following: list[int]
) -> tuple[list[int], int]:
    """Flat indices of row r's committed tokens and its limit; adds their next tokens."""
    batch, start = plan.batch, int(plan.batch.starts[r])
    if r in result.errors:
        return [], 0
    begin, end = int(batch.row_offsets[r]), int(batch.row_offsets[r + 1])
    lead = end - len(batch.draft(r).tokens)
    kept = [*range(begin, lead), *(lead + node for node in result.kept_paths.get(r, ()))]
    tokens = result.tokens_of(r)
    known = [*batch.tokens[begin + 1 : lead].tolist(), *(tokens or (plan.next_tokens[r],))]
    left = int(plan.tokens_left[r]) - len(tokens) - 1
    limit, deepest = int(plan.draft_limits[r]), drafter.depth or drafter.num_drafts
    if left < deepest:
        limit = max(0, min(limit, left))
    most = drafter.max_positions
    if most is not None and start + len(kept) + min(limit, deepest) > most:
        limit = 0
        kept = kept[: max(0, most - start)]
    following += known[: len(kept)]
    return kept, limit


def rows_to_take_in(
    plan: StepPlan,
    result: StepResult,
    drafter: Drafter,
    deferred: Deferred,
    features_TE: Tensor,
    taps: Sequence[Tensor],
) -> DraftRows | None:
    """The rows that a drafter takes in after this step; None where there are none.

    Where anybody wants candidates: all, with those of their requests that waited. Else what may
    wait waits, and a drafter without cache rows of its own gets nothing.
    """
    outputs = features_TE, *taps
    if deferred.goes_on(plan, result, outputs):
        return None
    committed = Committed.of(plan, result, drafter)
    present_R = committed.counts_R > 0
    wanted = bool(committed.limits_R[present_R].any())
    if not (wanted or drafter.attention):
        return None
    waiting_R = deferred.waiting(plan.batch)
    if not wanted:
        waits_R = present_R & deferred.may_wait(plan, waiting_R, committed.counts_R)
        given = committed.counts_R, committed.flat_N, committed.following_N
        deferred.put(plan.batch, waits_R, waiting_R, *given, outputs)
        present_R &= ~waits_R
    if not present_R.any():
        return None
    return _with_waiting(plan, present_R, waiting_R * present_R, committed, deferred, outputs)


def _with_waiting(
    plan: StepPlan, taken_R: Flags, waiting_R: Ints, committed: Committed, deferred: Deferred,
    outputs: tuple[Tensor, ...],
) -> DraftRows:  # fmt: skip
    """Of the taken rows what waited, then what this step committed."""
    batch, counts_R = plan.batch, committed.counts_R
    new_N = np.repeat(taken_R, counts_R)
    flat_N = committed.flat_N[new_N]
    tokens_N, following_N = batch.tokens[flat_N], committed.following_N[new_N]
    outputs_TO = beside(outputs)
    given_NO = outputs_TO[on(flat_N, outputs_TO)]
    waited = deferred.take(batch, taken_R, waiting_R)
    if waited.outputs_NO is not None:
        rows = np.arange(batch.num_rows)
        of_row_N = np.concatenate([np.repeat(rows, waiting_R), np.repeat(rows, counts_R * taken_R)])
        order_N = np.argsort(of_row_N, kind="stable")
        tokens_N = np.concatenate([waited.tokens_N, tokens_N])[order_N]
        following_N = np.concatenate([waited.following_N, following_N])[order_N]
        given_NO = torch.cat([waited.outputs_NO, given_NO])[on(order_N, given_NO)]
    device, ends_R = given_NO.device, np.cumsum(counts_R * taken_R + waiting_R)
    features_NE, *taps = given_NO.chunk(len(outputs), dim=1)
    return DraftRows(
        features_NE=features_NE,
        tokens_N=torch.from_numpy(tokens_N).to(device),
        next_tokens_N=torch.from_numpy(following_N).to(device),
        row_offsets=(0, *ends_R.tolist()),
        starts=tuple((batch.starts - waiting_R).tolist()),
        limits=tuple(committed.limits_R.tolist()),
        params=plan.params,
        seeds=plan.seeds,
        taps=tuple(taps),
    )
