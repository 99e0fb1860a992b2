"""Searches: the samples of a request whose tokens are chosen together, from laws.

What a search decides comes from plugins (`interlock_searches`); the core computes the law after
each output that goes on, and keeps the pages that outputs share.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from interlock.core.live import Live
from interlock.core.queues import Queues
from interlock.core.request import FinishReason, RequestId, RequestRecord, TokenLogprobs
from interlock.core.samples import SampleGroup
from interlock.core.sampling_params import SamplingParams


@dataclass(slots=True, eq=False)
class SampleSearch(SampleGroup, ABC):
    """All outputs of one request that searches; they go on from the first sample's prompt.

    A sample that has computed its newest token rests, with nothing pending, until it is told to go
    on (`Queues.extend`) or to continue another's output (`Queues.restart`). It may lose its pages
    meanwhile, but not its law. When the search ends, sample i is the i-th best output.
    """

    searches: ClassVar[bool] = True

    @property
    @abstractmethod
    def looked_at(self) -> int:
        """Most likely tokens after an output that the search needs to know."""

    @abstractmethod
    def learn(
        self, live: Live, laws: tuple[TokenLogprobs, ...], queues: Queues, now_s: float
    ) -> list[tuple[Live, FinishReason]]:
        """Take in what was computed after a sample's newest token, and say who goes on.

        At the end of the search: every sample, its record complete, and why it ended. Raises
        ContractError for anything but one law of `looked_at` tokens.
        """

    def released(self) -> list[Live]:
        """None: a sample starts when the search gives it an output."""
        return []

    def best(self, records: list[RequestRecord]) -> list[RequestRecord]:
        """The first n: they stand in order."""
        return records[: self.sampling.n]


SearchOf = Callable[[RequestId, SamplingParams, frozenset[int], int], SampleSearch | None]
"""The search that these parameters ask for, with the ids that end an output and the tokens that one
has at most; None where they ask for none of its kind."""
