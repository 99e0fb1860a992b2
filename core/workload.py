"""The workload seam: which requests arrive, and when."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from interlock.core.model import ModelDescription
from interlock.core.request import Request, RequestRecord, SamplingParams


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
    conversation: "Callable[[], Dialogue] | None" = None
    """Begins a chat; None without a chat template."""


class Dialogue(Protocol):
    """A chat: see `driver/conversation.py`."""

    def ask(self, *messages: Mapping[str, str]) -> tuple[int, ...]:
        """The next turn's prompt, which these begin; InterlockError for what is refused."""

    def answer(self, ids: Sequence[int], text: str | None = None) -> None:
        """What the model said to it, and the text where it was cut."""


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

    def follow(self, record: RequestRecord) -> Sequence[Request | BadRequest]:
        """What comes after a request of this workload that ended, however it did.

        Asked once for each request, with the record of its first sample (of those given out). The
        entries have indices of their own, which depend neither on the order in which requests end
        nor on time (a request's seed comes from its index), and arrive no earlier than that request
        ended.
        """
        return ()
