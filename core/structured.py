"""The structured-output seam: what keeps an output inside a grammar."""

from abc import ABC, abstractmethod
from collections.abc import Collection

from interlock.core.batch import Words
from interlock.core.sampling_params import GrammarKind


class Matcher(ABC):
    """Where one output stands in its grammar.

    An end token is allowed exactly where the text so far is a complete one; nothing is asked or
    accepted behind it, except that it is rolled back. Costs nothing per token already accepted.
    """

    @abstractmethod
    def allowed(self) -> Words:
        """Which tokens can come next, a fresh mask of the model's vocabulary. [W]"""

    @abstractmethod
    def accept(self, token: int) -> bool:
        """Stand behind this token; False, and nothing changed, if it cannot come next."""

    @abstractmethod
    def rollback(self, count: int) -> None:
        """Stand where it stood before the last `count` accepted tokens."""


class StructuredOutput(ABC):
    """Compiles what requests ask for, with the model's vocabulary at hand."""

    @abstractmethod
    def matcher(self, kind: GrammarKind, text: str, end_ids: Collection[int]) -> Matcher:
        """A matcher at the start of an output that ends with one of `end_ids` (never text).

        Raises ValueError, with the reason in one line, for a text that cannot be followed exactly.
        """
