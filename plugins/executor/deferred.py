"""Committed rows that wait for a drafter's pass while nobody wants candidates.

A pass for one row a request costs nearly as much as one for a page of them, so the rows of steps
without drafting are kept and taken in together: when drafting goes on, or when they end a page,
which may become visible to other requests after that step. What waits of a request therefore lies
in one page. A request that ends, is preempted or goes on elsewhere leaves its rows behind: they
are computed again from wherever it continues. Rows never wait where another sample may copy a page
that is partly filled, where a window may have let go of what an older row sees, at the last
position that the drafter handles, nor on several ranks, of which only the first knows slots and
samples.

Memory: page_size * (1 + taps) * hidden size values for each request that runs.

Legend: S slots, B entries of a page, X = S * B, R rows of a step, W those that wait, N committed
tokens, E hidden size.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from interlock.core.batch import Batch, Ints, StepPlan
from interlock.core.drafter import Drafter

Flags = NDArray[np.bool_]
NOBODY = -1
NONE: Ints = np.zeros(0, dtype=np.int64)


class Waited(NamedTuple):
    """Rows of several requests, those of one together: tokens, the tokens after them, and of each
    of the target's outputs [N, E]."""

    tokens_N: Ints
    following_N: Ints
    outputs: tuple[Tensor, ...]


class Deferred:
    """What waits, by slot. A request's rows are known by its id and by where they end.

    Entry p of the request in slot s lies at s B + p mod B of what is kept.
    """

    def __init__(self, drafter: Drafter, ranks: int) -> None:
        self._allowed = ranks == 1 and all(spec.window is None for spec in drafter.attention)
        self._most = drafter.max_positions
        self._owners_S, self._ends_S, self._counts_S = np.zeros((3, 0), dtype=np.int64)
        self._tokens_X = self._following_X = NONE
        self._outputs: list[Tensor] = []
        """[S * B, E] of the target's features, then of each tap."""

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
        self._owners_S[slots_W] = np.array(batch.request_ids)[at_W]
        self._ends_S[slots_W] = begins_W + counts_W
        self._counts_S[slots_W] = waiting_R[at_W] + counts_W
        places_N = _places(batch.page_size, slots_W, begins_W, counts_W)
        self._tokens_X[places_N], self._following_X[places_N] = batch.tokens[flat_N], following_N
        self._keep(outputs)
        on_device_N = on(places_N, outputs[0])
        whole = np.array_equal(flat_N, np.arange(len(outputs[0])))
        rows_N = slice(None) if whole else on(flat_N, outputs[0])
        for kept_XE, output_TE in zip(self._outputs, outputs, strict=True):
            kept_XE.index_copy_(0, on_device_N, output_TE[rows_N])

    def take(self, batch: Batch, taken_R: Flags, waiting_R: Ints) -> Waited:
        """What waits of these rows' requests, as `waiting` says; then it waits no longer."""
        if not self._allowed:
            return Waited(NONE, NONE, ())
        counts_W, slots_W = waiting_R[taken_R], batch.slots[taken_R]
        self._owners_S[slots_W] = NOBODY
        if not counts_W.any():
            return Waited(NONE, NONE, ())
        places_N = _places(batch.page_size, slots_W, batch.starts[taken_R] - counts_W, counts_W)
        on_device_N = on(places_N, self._outputs[0])
        return Waited(
            self._tokens_X[places_N],
            self._following_X[places_N],
            tuple(kept_XE[on_device_N] for kept_XE in self._outputs),
        )

    def _grow(self, batch: Batch) -> None:
        """Room for the batch's slots: if it is missing, for twice as many as before at least."""
        have, need = len(self._owners_S), int(batch.slots.max()) + 1
        if need <= have:
            return
        more = max(need, 2 * have) - have
        self._owners_S = np.pad(self._owners_S, (0, more), constant_values=NOBODY)
        self._ends_S = np.pad(self._ends_S, (0, more))
        self._counts_S = np.pad(self._counts_S, (0, more))
        self._tokens_X = np.pad(self._tokens_X, (0, more * batch.page_size))
        self._following_X = np.pad(self._following_X, (0, more * batch.page_size))

    def _keep(self, outputs: Sequence[Tensor]) -> None:
        """Room for these outputs of every slot; what waits stays."""
        size = len(self._tokens_X)
        if self._outputs and len(self._outputs[0]) == size:
            return
        larger = [output_TE.new_empty(size, output_TE.shape[1]) for output_TE in outputs]
        for new_XE, kept_XE in zip(larger, self._outputs, strict=False):
            new_XE[: len(kept_XE)] = kept_XE
        self._outputs = larger


def _places(page_size: int, slots_R: Ints, begins_R: Ints, counts_R: Ints) -> Ints:
    """Where counts_R entries each lie, from entries begins_R on."""
    if not (counts_R != 1).any():
        return slots_R * page_size + begins_R % page_size
    before_R = np.cumsum(counts_R) - counts_R
    entries_N = np.arange(counts_R.sum()) + np.repeat(begins_R - before_R, counts_R)
    return np.asarray(np.repeat(slots_R, counts_R) * page_size + entries_N % page_size)


def on(places: Ints, like: Tensor) -> Tensor:
    """Places as a tensor where `like` is."""
    return torch.from_numpy(places).to(like.device)
