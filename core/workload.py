"""The workload seam: which requests arrive, and when."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
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
    """Text to ids, with the tokenizer's own special tokens; None without a tokenizer."""
    apply_chat_template: Callable[[Sequence[Mapping[str, str]]], list[int]] | None
    """Messages to the ids of a prompt that asks for an answer; None without a chat template.

    Raises an InterlockError for messages that the template refuses."""


@dataclass(frozen=True)
class BadRequest:
    """An entry of the workload that is no request; recorded as failed, the others go on."""

    index: int
    reason: str


class Workload(ABC):
    """Produces the requests of a run."""

    @abstractmethod
    def requests(self, context: WorkloadContext) -> list[Request | BadRequest]:
        """All entries in index order (0, 1, ...), each with its scheduled arrival (>= 0).

        The same context gives equal requests; no global random state is read or changed. A request
        that the model cannot serve is returned all the same: intake refuses it alone. Raises
        WorkloadError (file and line) when the source cannot be read at all.
        """
