"""The drafter seam: candidate tokens. The core keeps alignment, rollback and what is indexed."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from interlock.core.batch import Draft, Ints

if TYPE_CHECKING:
    from torch import Tensor

    from interlock.core.model import Attend, AttentionSpec, Decoder


class Drafter(ABC):
    """Proposes up to `num_drafts` candidate tokens per request and step."""

    num_drafts: int
    lookback_tokens: int = 0
    """How many following tokens a cached row of this drafter depends on (1 for EAGLE and MTP)."""

    max_positions: int | None = None
    """Positions the drafter can handle; beyond them the request goes on without drafts."""

    attention: "tuple[AttentionSpec, ...]" = ()
    """Layers of its own, numbered after the target's. An attention backend declares and keeps their
    rows, which share page tables with the target's."""


class TokenDrafter(Drafter):
    """A model-free drafter: candidates from token ids alone, on the host, as a step is planned."""

    @abstractmethod
    def propose(self, tokens: Ints, limit: int) -> Draft:
        """At most min(limit, num_drafts) candidates after `tokens` (prompt and output so far).

        `tokens` is a view of the engine's own array: read it now, do not keep or change it.
        """


@dataclass(frozen=True)
class DraftRows:
    """Committed rows that a feature drafter must take in after a step.

    For request r, flat rows row_offsets[r] .. row_offsets[r + 1] pair the target's feature of
    position p with the token at p + 1. They become entries starts[r], starts[r] + 1, ... of its
    page tables; a request whose rows are empty is skipped. `limits[r]` candidates are wanted
    after its last row (0: only take the rows in, to stay aligned).
    """

    features_NE: "Tensor"
    next_tokens_N: "Tensor"
    row_offsets: tuple[int, ...]
    starts: tuple[int, ...]
    limits: tuple[int, ...]


class DraftContext(ABC):
    """What the executor lends a drafter during its passes."""

    decoder: "Decoder"

    @abstractmethod
    def attend(
        self, requests: Sequence[int], row_lengths: Sequence[int], starts: Sequence[int]
    ) -> tuple["Attend", "Tensor"]:
        """Attention over the pages of these requests (places in DraftRows), and positions [N].

        Row i brings row_lengths[i] new tokens that become entries starts[i] ... of its pages.
        """


class FeatureDrafter(Drafter):
    """A drafter with its own forward passes over target features and its own cache rows.

    The executor calls it after each verification with the rows that were committed, so its rows
    are always built from true features; rows beyond them are speculative and overwritten.
    """

    @abstractmethod
    def propose(self, rows: DraftRows, context: DraftContext) -> list[Draft]:
        """Take in all rows, then one draft per request (empty where the limit is 0)."""
