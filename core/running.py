"""The running requests in columns, so that a step handles all of them in a few array operations."""

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from interlock.core.batch import Ints, Seeds
from interlock.core.request import RequestId
from interlock.core.sampling_params import SamplingParams

if TYPE_CHECKING:
    from interlock.core.kv_cache import Holding
    from interlock.core.live import Live

Flags = NDArray[np.bool_]


class Roster(NamedTuple):
    """Running requests in the order of a step's rows, and what of them does not change."""

    slots: Ints
    lives: "tuple[Live, ...]"
    ids: tuple[RequestId, ...]
    indices: tuple[int, ...]
    """Places in the workload."""
    params: tuple[SamplingParams, ...]
    seeds: Seeds
    adapters: tuple[int, ...]
    """Empty when none has one."""


class Running:
    """Columns by slot: the place that a running request has in the page tables.

    `length` counts its tokens, of which `prompt` are given and at most `most` come to be;
    `computed` entries have committed cache rows, and `high_water` is the most it ever had; `last`
    is its newest token. `present` slots are taken; `ended` ones wait for a step in flight.
    `special` requests have more to note of a token than the token: text,
    edits of their laws, log-probabilities.
    """

    def __init__(self, slots: int) -> None:
        self.lives: list[Live | None] = [None] * slots
        self.ids = np.zeros(slots, dtype=np.int64)
        self.prompt, self.most = np.zeros((2, slots), dtype=np.int64)
        self.length, self.computed = np.zeros((2, slots), dtype=np.int64)
        self.high_water, self.last = np.zeros((2, slots), dtype=np.int64)
        self.present, self.special = np.zeros((2, slots), dtype=np.bool_)
        self.in_flight, self.ended = np.zeros((2, slots), dtype=np.bool_)
        self._roster: Roster | None = None

    def join(self, slot: int, live: "Live", computed: int) -> None:
        """A request starts, or starts again, with this many entries computed."""
        self.lives[slot], self.ids[slot] = live, live.id
        self.prompt[slot], self.most[slot] = live.sequence.num_prompt, live.max_length
        self.length[slot], self.last[slot] = live.sequence.length, live.sequence.last()
        self.computed[slot] = computed
        self.high_water[slot] = max(live.high_water, computed)
        self.present[slot], self.in_flight[slot], self.ended[slot] = True, False, False
        of_tokens = live.text, live.edits, live.request.sampling.logprobs
        self.special[slot] = any(one is not None for one in of_tokens)
        self._roster = None

    def part(self, slot: int) -> None:
        """A request ended or was preempted; the slot is free."""
        live = self.lives[slot]
        assert live is not None
        live.high_water = int(self.high_water[slot])
        self.lives[slot] = None
        self.present[slot] = self.in_flight[slot] = False
        self._roster = None

    def at(self, slot: int) -> "Live":
        """The request in a slot."""
        live = self.lives[slot]
        assert live is not None, f"slot {slot} is free"
        return live

    def holding(self, slot: int) -> "Holding":
        """The pages of the request in a slot."""
        holding = self.at(slot).holding
        assert holding is not None
        return holding

    def roster(self, slots: Ints) -> Roster:
        """The requests in these slots; the same object while these are the same requests."""
        if self._roster is None or not np.array_equal(self._roster.slots, slots):
            lives = tuple(self.at(slot) for slot in slots.tolist())
            adapters = tuple(live.adapter for live in lives)
            self._roster = Roster(
                slots,
                lives,
                ids=tuple(live.id for live in lives),
                indices=tuple(live.request.index for live in lives),
                params=tuple(live.request.sampling for live in lives),
                seeds=np.array([live.seed for live in lives], dtype=np.uint64),
                adapters=adapters if max(adapters) >= 0 else (),
            )
        return self._roster
