"""The workload seam: which requests arrive, and when."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from interlock.core.model import ModelDescription
from interlock.core.request import Request, SamplingParams


@dataclass(frozen=True)
class WorkloadContext:
    """What a workload may use to make its requests."""

    model: ModelDescription
    sampling: SamplingParams
    """The run's defaults; a request may override them."""
    seed: int
    encode: Callable[[str], list[int]] | None
    """Text to ids; None without a tokenizer."""
    apply_chat_template: Callable[[Sequence[dict[str, str]]], str] | None


class BadRequest(tuple[int, str]):
    """(index, reason): a line of the workload that is no request; recorded as failed."""


class Workload(ABC):
    """Produces the requests of a run."""

    @abstractmethod
    def requests(self, context: WorkloadContext) -> list[Request | BadRequest]:
        """All requests in index order, each with its scheduled arrival.

        Raises WorkloadError (file and line) when the source cannot be read at all.
        """
