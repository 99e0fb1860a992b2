"""Committed rows that wait for a drafter's pass while nobody wants candidates.

A pass for one row a request costs nearly as much as one for a page of them, so the rows of steps
without drafting are kept and taken in together: when drafting goes on, or when they end a page,
which may become visible to other requests after that step. What waits of a request therefore lies
in one page. A request that ends, is preempted or goes on elsewhere leaves its rows behind: they
are computed again from wherever it continues. Rows never wait where another sample may copy a page
that is partly filled, where a window may have let go of what an older row sees, at the last
position that the drafter handles, nor on several ranks, of which only the first knows slots and
samples.

Steps in a row that give the same requests one more token each are kept as they come, and their rows
put in their places together: a step costs more in bookkeeping than in copies.

Memory: at most 2 * page_size * (1 + taps) * hidden size values for each request that runs.

Legend: S slots, B entries of a page, X = S * B, R rows of a step, W those that wait, N committed
tokens, E hidden size, O of all outputs together, n steps of a streak.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from interlock.core.batch import Batch, Ints, StepPlan, StepResult
from interlock.core.drafter import Drafter

Flags = NDArray[np.bool_]
NOBODY = -1
NONE: Ints = np.zeros(0, dtype=np.int64)


class Waited(NamedTuple):
    """Rows of several requests, those of one together: tokens, the tokens after them, and the
    target's outputs side by side [N, O]; None where nothing waited."""

    tokens_N: Ints
    following_N: Ints
    outputs_NO: Tensor | None


class Streak(NamedTuple):
    """Steps alike: the same requests in the same slots, from entries begins_R on, one more each.

    `most` steps are alike at most, before a request ends its page.
    """

    ids: tuple[int, ...]
    slots_R: Ints
    begins_R: Ints
    most: int
    tokens: list[Ints]
    following: list[Ints]
    outputs: list[Tensor]
    """Of each step [R, O]."""


class Deferred:
    """What waits, by slot. A request's rows are known by its id and by where they end.

    Entry p of the request in slot s lies at s B + p mod B of what is kept.
    """

    def __init__(self, drafter: Drafter, ranks: int) -> None:
        self._allowed = ranks == 1 and all(spec.window is None for spec in drafter.attention)
        self._most = drafter.max_positions
        self._page_size = 1
        self._owners_S, self._ends_S, self._counts_S = np.zeros((3, 0), dtype=np.int64)
        self._tokens_X = self._following_X = NONE
        self._outputs_XO: Tensor | None = None
        """The target's features, then each tap."""
        self._streak: Streak | None = None

    def goes_on(self, plan: StepPlan, result: StepResult, outputs: Sequence[Tensor]) -> bool:
        """Keep the step if it is alike the one before, so that nothing else is to be done; else put
        what was kept in its places."""
        streak, batch = self._streak, plan.batch
        if streak is None:
            return False
        alike = (
            len(streak.tokens) < streak.most
            and batch.request_ids == streak.ids
            and len(batch.tokens) == len(result.tokens) == len(streak.ids)
            and not (batch.drafts or result.errors or plan.draft_limits.any())
            and np.array_equal(batch.slots, streak.slots_R)
            and np.array_equal(batch.starts, streak.begins_R + len(streak.tokens))
        )
        if alike:
            streak.tokens.append(batch.tokens)
            streak.following.append(result.tokens)
            streak.outputs.append(beside(outputs, own=True))
        else:
            self._end_streak(streak)
        return alike

    def waiting(self, batch: Batch) -> Ints:
        """[R]: how many rows wait that end where a row of the batch begins, of its request."""
        if not self._allowed:
            return np.zeros(batch.num_rows, dtype=np.int64)
        self._grow(batch)
        slots_R = batch.slots
        own_R = self._owners_S[slots_R] == np.array(batch.request_ids)
        own_R &= self._ends_S[slots_R] == batch.starts
        return np.asarray(self._counts_S[slots_R] * own_R)

    def may_wait(self, plan: StepPlan, waiting_R: Ints, counts_R: Ints) -> Flags:
        """[R]: whose committed tokens need not be taken in now, if nobody wants candidates."""
        batch = plan.batch
        if not self._allowed:
            return np.zeros(batch.num_rows, dtype=np.bool_)
        ends_R, begins_R = batch.starts + counts_R, batch.starts - waiting_R
        waits_R = ends_R // batch.page_size == begins_R // batch.page_size
        if self._most is not None:
            waits_R &= ends_R < self._most
        waits_R &= [params.samples == 1 for params in plan.params]
        return np.asarray(waits_R)

    def put(
        self, batch: Batch, waits_R: Flags, waiting_R: Ints, counts_R: Ints, flat_N: Ints,
        following_N: Ints, outputs: Sequence[Tensor],
    ) -> None:  # fmt: skip
        """Let what some rows of the batch committed wait, behind what `waiting` says of them:
        counts_R tokens each, those at flat_N."""
        at_W = np.flatnonzero(waits_R)
        if not len(at_W):
            return
        if len(at_W) < len(waits_R):
            waits_N = np.repeat(waits_R, counts_R)
            flat_N, following_N = flat_N[waits_N], following_N[waits_N]
        slots_W, begins_W, counts_W = batch.slots[at_W], batch.starts[at_W], counts_R[at_W]
        ends_W = begins_W + counts_W
        self._owners_S[slots_W] = np.array(batch.request_ids)[at_W]
        self._ends_S[slots_W], self._counts_S[slots_W] = ends_W, waiting_R[at_W] + counts_W
        places_N = _places(batch.page_size, slots_W, begins_W, counts_W)
        outputs_TO = beside(outputs)
        whole = np.array_equal(flat_N, np.arange(len(outputs_TO)))
        outputs_NO = outputs_TO if whole else outputs_TO[on(flat_N, outputs_TO)]
        self._write(places_N, batch.tokens[flat_N], following_N, outputs_NO)
        if whole and len(at_W) == len(waits_R) == len(flat_N):
            most = int((batch.page_size - 1 - ends_W % batch.page_size).min())
            if self._most is not None:
                most = min(most, self._most - 1 - int(ends_W.max()))
            self._streak = Streak(batch.request_ids, slots_W, ends_W, most, [], [], [])

    def take(self, batch: Batch, taken_R: Flags, waiting_R: Ints) -> Waited:
        """What waits of these rows' requests, as `waiting` says; then it waits no longer."""
        counts_W, slots_W = waiting_R[taken_R], batch.slots[taken_R]
        if self._allowed:
            self._owners_S[slots_W] = NOBODY
        if not counts_W.any():
            return Waited(NONE, NONE, None)
        assert self._outputs_XO is not None
        places_N = _places(batch.page_size, slots_W, batch.starts[taken_R] - counts_W, counts_W)
        outputs_NO = self._outputs_XO[on(places_N, self._outputs_XO)]
        return Waited(self._tokens_X[places_N], self._following_X[places_N], outputs_NO)

    def _end_streak(self, streak: Streak) -> None:
        """Put its rows in their places."""
        self._streak, steps = None, len(streak.tokens)
        if not steps:
            return
        entries_nR = streak.begins_R + np.arange(steps)[:, None]
        places_nR = streak.slots_R * self._page_size + entries_nR % self._page_size
        tokens, following = np.concatenate(streak.tokens), np.concatenate(streak.following)
        self._write(places_nR.flatten(), tokens, following, torch.cat(streak.outputs))
        self._ends_S[streak.slots_R] += steps
        self._counts_S[streak.slots_R] += steps

    def _write(self, places_N: Ints, tokens_N: Ints, following_N: Ints, outputs_NO: Tensor) -> None:
        self._tokens_X[places_N], self._following_X[places_N] = tokens_N, following_N
        kept_XO, size = self._outputs_XO, len(self._tokens_X)
        if kept_XO is None or len(kept_XO) < size:  # room for every slot; what waits stays
            self._outputs_XO = outputs_NO.new_empty(size, outputs_NO.shape[1])
            if kept_XO is not None:
                self._outputs_XO[: len(kept_XO)] = kept_XO
            kept_XO = self._outputs_XO
        kept_XO.index_copy_(0, on(places_N, outputs_NO), outputs_NO)

    def _grow(self, batch: Batch) -> None:
        """Room for the batch's slots: if it is missing, for twice as many as before at least."""
        have, need = len(self._owners_S), int(batch.slots.max()) + 1
        if need <= have:
            return
        self._page_size, more = batch.page_size, max(need, 2 * have) - have
        self._owners_S = np.pad(self._owners_S, (0, more), constant_values=NOBODY)
        self._ends_S = np.pad(self._ends_S, (0, more))
        self._counts_S = np.pad(self._counts_S, (0, more))
        self._tokens_X = np.pad(self._tokens_X, (0, more * batch.page_size))
        self._following_X = np.pad(self._following_X, (0, more * batch.page_size))


def _places(page_size: int, slots_R: Ints, begins_R: Ints, counts_R: Ints) -> Ints:
    """Where counts_R entries each lie, from entries begins_R on."""
    if not (counts_R != 1).any():
        return slots_R * page_size + begins_R % page_size
    before_R = np.cumsum(counts_R) - counts_R
    entries_N = np.arange(counts_R.sum()) + np.repeat(begins_R - before_R, counts_R)
    return np.asarray(np.repeat(slots_R, counts_R) * page_size + entries_N % page_size)


def beside(outputs: Sequence[Tensor], own: bool = False) -> Tensor:
    """The outputs side by side [T, O]; with `own` in memory that no later step writes over."""
    if len(outputs) > 1:
        return torch.cat(list(outputs), dim=1)
    return outputs[0].clone() if own else outputs[0]


def on(places: Ints, like: Tensor) -> Tensor:
    """Places as a tensor where `like` is."""
    return torch.from_numpy(places).to(like.device)
