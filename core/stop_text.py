"""The text of one output as it becomes final, and the stop strings that end it."""

from collections.abc import Container, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from interlock.core.text import Detokenizer


class OutputText:
    """Turns an output's tokens into text that is never taken back.

    The output ends with the token that completes a stop string; of several, the one completed
    first in the text counts, of those that one character completes the longest. The text ends
    before it, or behind it with `include_stop`. What may still become a stop string is withheld:
    the longest end of the text that one begins with. Stop strings that one of the first
    `min_tokens` tokens completes are passed over. `opening` is text that comes before the
    output's own and in which no stop string is looked for.
    """

    def __init__(
        self,
        stream: "Detokenizer",
        stops: Sequence[str] = (),
        include_stop: bool = False,
        opening: str = "",
        min_tokens: int = 0,
    ) -> None:
        self.stopped_by: str | None = None
        """The stop string that ended the output."""
        self._stream = stream
        self._stops = tuple(stops)
        self._include_stop = include_stop
        self._passed_over = min_tokens
        self._final = [opening] if opening else []
        self._taken = 0
        self._withheld = ""

    def push(self, tokens: Sequence[int], stop_ids: Container[int] = ()) -> int:
        """How many of these new tokens are the output's: all, or up to one that ends it.

        A token of `stop_ids` is the last one; its text counts like that of a stop string. O(new
        tokens), times the stop strings.
        """
        for count, token in enumerate(tokens, start=1):
            self._passed_over -= 1
            if token in stop_ids and not self._include_stop:
                return count
            piece = self._stream.push((token,))
            if piece and self._append(piece):
                return count
        return len(tokens)

    def take(self) -> str:
        """The text that became final since the last call."""
        pieces = self._final[self._taken :]
        self._taken = len(self._final)
        return "".join(pieces)

    def end(self) -> str:
        """All of the text, now that the output ended: nothing is withheld any more."""
        if self.stopped_by is None:
            self._final.append(self._withheld + self._stream.flush())
            self._withheld = ""
        return "".join(self._final)

    def _append(self, piece: str) -> bool:
        """Add text; True if it completes a stop string."""
        before, text = len(self._withheld), self._withheld + piece
        found: list[tuple[int, int, str]] = []
        for stop in self._stops if self._passed_over < 0 else ():
            start = text.find(stop, max(0, before - len(stop) + 1))
            if start >= 0:
                found.append((start + len(stop), start, stop))
        if found:
            end, start, self.stopped_by = min(found)
            self._final.append(text[: end if self._include_stop else start])
            return True
        kept = len(text) - self._unsafe(text)
        self._final.append(text[:kept])
        self._withheld = text[kept:]
        return False

    def _unsafe(self, text: str) -> int:
        """Length of the longest end of the text that is the beginning of a stop string."""
        most = 0
        for stop in self._stops:
            for length in range(min(len(stop) - 1, len(text)), most, -1):
                if text.endswith(stop[:length]):
                    most = length
                    break
        return most
