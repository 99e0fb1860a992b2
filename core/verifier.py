"""The verifier seam: which candidates the target accepts, and the token after them."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from interlock.core.batch import Draft

if TYPE_CHECKING:
    from torch import Tensor

    from interlock.core.streams import Purpose, Uniforms


class TargetRows(ABC):
    """The target's law at every node of a step: row i of the logits rows, requests in order.

    A law is made from the raw logits in this order:
    1. repetition_penalty: of tokens in prompt or output, positive logits / it, other logits * it
    2. frequency_penalty * count + presence_penalty, off the logits of tokens in the output
    3. logit_bias, added
    4. masks: allowed_token_ids, banned_token_ids, min_tokens, the grammar
    5. divide by the temperature, keep top_k, then top_p, then min_p

    The output at a node includes the candidates on the way to it. Log-probabilities are those of
    the raw logits. Noise is keyed by (request seed, position, purpose), so it depends neither on
    the batch nor on the draft.
    """

    @abstractmethod
    def sample(self) -> list[int]:
        """One token per node, drawn with the noise of the node's position. O(rows)."""

    @abstractmethod
    def uniforms(self, purpose: "Purpose", sample: int = 0) -> "Uniforms":
        """One number in [0, 1) a node, of the stream of this purpose at the node's position.

        Nodes of equal depth share it: of several on one path there is only one. `sample` numbers
        further draws there (the siblings that are tried, one after the other). A verdict
        may follow from numbers of the positions that it fills, each for one purpose, and no others:
        those of positions that stay open come again in the next round, and what they decided
        before would bias it.
        """

    @abstractmethod
    def laws(self) -> "Tensor":
        """[rows, vocab] probabilities in fp32 or wider; greedy rows are one-hot."""


class Verdict(NamedTuple):
    """Accepted candidates (indices into the draft, ancestors first) and the token after them."""

    path: tuple[int, ...]
    token: int


class Verifier(ABC):
    """Applies an accept rule to each request's draft.

    A request without candidates gets what plain decoding draws: the token of `TargetRows.sample`.
    """

    @abstractmethod
    def accept(self, drafts: Sequence[Draft], rows: TargetRows) -> list[Verdict]:
        """One verdict per draft. Request r owns 1 + len(drafts[r].tokens) rows: the anchor's law,
        then the law after each candidate, in draft order."""
