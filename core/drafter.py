"""The drafter seam: candidate tokens. The core keeps alignment, rollback and what is indexed."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from interlock.core.batch import Draft, Ints, Seeds
from interlock.core.request import RequestId, SamplingParams

if TYPE_CHECKING:
    from torch import Tensor

    from interlock.core.model import Attend, AttentionSpec, Decoder


class Drafter(ABC):
    """Proposes up to `num_drafts` candidate tokens per request and step."""

    num_drafts: int
    lookback_tokens: int = 0
    """How many following tokens a cached row of this drafter depends on (1 for EAGLE and MTP)."""

    one_pass: bool = False
    """True: proposing takes one forward pass, however many candidates come out of it."""

    depth: int | None = None
    """Candidates on the longest path of its trees; None: as many as there are (chains)."""

    max_positions: int | None = None
    """Positions the drafter can handle; beyond them the request goes on without drafts."""

    attention: "tuple[AttentionSpec, ...]" = ()
    """Layers of its own, numbered after the target's. An attention backend declares and keeps their
    rows, which share page tables with the target's."""

    wants_draws: bool = False
    """True: `TokenDrafter.verified` is called with what the target drew after each candidate."""

    whole: bool = False
    """True: part of a draft is of little use, so what a length policy wants some of is whole."""

    def entries_ahead(self, limit: int) -> int:
        """Entries after the last committed row that proposing `limit` >= 1 candidates writes."""
        return limit - 1 if self.attention else 0


class TokenDrafter(Drafter):
    """A model-free drafter: candidates from token ids, on the host, as a step is planned."""

    @abstractmethod
    def propose(self, request: RequestId, tokens: Ints, limit: int) -> Draft:
        """At most min(limit, num_drafts) candidates after `tokens` (prompt and output so far).

        `tokens` is a view of the engine's own array: read it now, do not keep or change it. Of one
        request it only grows between calls, also when steps without a call lie between them.
        """

    def verified(self, request: RequestId, draft: Draft, draws: Sequence[int]) -> None:
        """What the target drew after the anchor and after each candidate of a verified draft."""

    def ended(self, request: RequestId, tokens: Ints, prompt_tokens: int) -> None:
        """A request is over, for whatever reason: `tokens` are all it has, its prompt's first.

        Called once for every request that `propose` may have seen.
        """


@dataclass(frozen=True)
class DraftRows:
    """Committed rows that a feature drafter must take in after a step, earlier ones included.

    For request r, flat rows row_offsets[r] .. row_offsets[r + 1] have the token and the target's
    feature of position p, what the drafter's `taps` gave there, and the token at p + 1. They
    become entries starts[r], starts[r] + 1, ... of its page tables; a request whose rows are empty
    is skipped. `limits[r]` candidates are wanted after its last row (0: only take the rows in, to
    stay aligned). `params` and `seeds` say how the request's tokens are drawn.
    """

    features_NE: "Tensor"
    tokens_N: "Tensor"
    next_tokens_N: "Tensor"
    row_offsets: tuple[int, ...]
    starts: tuple[int, ...]
    limits: tuple[int, ...]
    params: tuple[SamplingParams, ...]
    seeds: Seeds
    taps: "tuple[Tensor, ...]" = ()
    """Of each tapped layer the output [N, E]."""


class Drawn(NamedTuple):
    """Tokens [R], and the laws [R, vocab] that they were drawn from."""

    tokens_R: "Tensor"
    laws_RV: "Tensor"


class DraftContext(ABC):
    """What the executor lends a drafter during its passes."""

    decoder: "Decoder"

    @abstractmethod
    def attend(
        self,
        requests: Sequence[int],
        row_lengths: Sequence[int],
        starts: Sequence[int],
        positions: Sequence[int] | None = None,
        masks: "Mapping[int, Tensor] | None" = None,
        store_only: bool = False,
    ) -> tuple["Attend", "Tensor"]:
        """Attention over the pages of these requests (places in DraftRows), and positions [N].

        Row i brings row_lengths[i] new tokens that become entries starts[i] ... of its pages.
        Their flat `positions` are their entries unless given. `masks[i]`, bool [n, n], says which
        of row i's new tokens each of them sees (all see what was committed before); without one a
        row is a chain. With `store_only` rows are written and nothing is attended: what comes back
        is [0, H, V].
        """

    @abstractmethod
    def draw(
        self, logits_RV: "Tensor", requests: Sequence[int], positions: Sequence[int], nth: int = 0
    ) -> Drawn:
        """One token for each row of logits, by its request's temperature, top_k, top_p and min_p.

        positions[i] is where the token will stand. Its noise is the drafters' own, so what is drawn
        says nothing about what the target will draw or accept; and it is this round's own, for a
        verifier may let all of a draft decide its first token. Siblings are drawn one after the
        other, `nth` 0, 1, ...; without replacement if what came before has logits of -inf.
        """

    def caught_up(self) -> None:
        """Say that the committed rows are taken in, and that what follows is drafting."""


class FeatureDrafter(Drafter):
    """A drafter with its own forward passes over target features and its own cache rows.

    The executor calls it after a verification with the rows that were committed, so its rows
    are always built from true features; rows beyond them are speculative and overwritten. While
    nobody wants candidates, rows may wait and come several steps' together, at the latest when
    they end a page; a drafter without cache rows (`attention`) then gets none.
    """

    taps: tuple[int, ...] = ()
    """Layers of the target (0 is the first) whose output, before any final norm, it reads."""

    @abstractmethod
    def propose(self, rows: DraftRows, context: DraftContext) -> list[Draft]:
        """Take in all rows, then one draft per request (empty where the limit is 0)."""
