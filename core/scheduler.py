"""The scheduler seams: four narrow policies. The core applies them and owns capacity."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from interlock.core.batch import Ints
from interlock.core.request import RequestId


@dataclass(slots=True)
class RequestView:
    """What a policy may know about a request. Tokens are counts; `admission` is the order of first
    admission (None before it); `pages` are held pages of table 0; `pending` are tokens whose rows
    must still be computed before the next token can be drawn (1 for a decoding request)."""

    id: RequestId
    arrival_s: float
    priority: int
    tenant: str
    prompt_tokens: int
    total_tokens: int
    pending: int
    admission: int | None = None
    pages: int = 0
    preemptions: int = 0

    @property
    def decoding(self) -> bool:
        """True when only the newest token waits to be computed."""
        return self.pending == 1 and self.total_tokens > self.prompt_tokens


class Load(NamedTuple):
    """The state of the engine when a request asks to be admitted."""

    now_s: float
    running: int
    free_pages: int
    """Pages that could be had now, evicting cached ones, in the table with least room."""
    total_pages: int
    needed_pages: int
    """Pages the candidate needs for its tokens so far."""


class OrderPolicy(ABC):
    """Who goes first, among waiting requests and among running ones that share a budget."""

    @abstractmethod
    def key(self, view: RequestView) -> Any:
        """Sort key; the smallest goes first. Fixed while the request waits."""


class AdmissionPolicy(ABC):
    """Whether the first waiting request may start now. The core checks capacity by itself."""

    @abstractmethod
    def admit(self, view: RequestView, load: Load) -> bool:
        """False keeps it (and everyone behind it) waiting this step.

        A policy must not refuse for ever a request that fits an empty engine.
        """


class Share(NamedTuple):
    """Compute this many pending tokens of this request."""

    id: RequestId
    tokens: int


class Decodes:
    """The requests that need one token each, in the order policy's order.

    `ids` (an array) and the length cost nothing; iterating brings each request's view up to date,
    which a policy should do only when it has to know more than who they are.
    """

    def __init__(self, ids: Ints, view: Callable[[RequestId], RequestView]) -> None:
        self.ids = ids
        self._view = view

    def __len__(self) -> int:
        """How many."""
        return len(self.ids)

    def __iter__(self) -> Iterator[RequestView]:
        """Their views."""
        return map(self._view, self.ids.tolist())


class Division(NamedTuple):
    """How a step's tokens are given out, most important first, each request at most once.

    Each of `decodes` gets its token. Where pages are short, the decodes' come first, or those of
    the shares with `shares_first`.
    """

    decodes: Ints
    shares: Sequence[Share] = ()
    shares_first: bool = False


class ChunkingPolicy(ABC):
    """How a step's token budget is divided."""

    @abstractmethod
    def divide(
        self, decodes: Decodes, prefills: Sequence[RequestView], budget_tokens: int
    ) -> Division:
        """Who gets tokens in this step.

        `decodes` need one token each (draft tokens are added by the core): the answer has the ids
        of those that get it, `decodes.ids` itself for all of them. `prefills` (running or
        admissible) get shares of any part of `pending`. Both come in the order policy's order. At
        least one request gets something if there is any. No request may be left out for ever.
        """


class VictimPolicy(ABC):
    """Whose pages are taken when a more important request cannot grow."""

    @abstractmethod
    def choose(self, candidates: Sequence[RequestView]) -> RequestId:
        """One of the candidates (never empty, never the oldest admitted request)."""
