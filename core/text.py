"""Text to token ids and back: what a plugin reads from a model's tokenizer files."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from interlock.core.model_files import ModelFiles


class Detokenizer(ABC):
    """Turns a growing output into text pieces that join to the text of the whole output."""

    @abstractmethod
    def push(self, ids: Sequence[int]) -> str:
        """The text that these tokens complete; may be empty. O(len(ids))."""

    @abstractmethod
    def flush(self) -> str:
        """What was held back, as it stands; the output ended."""


class TextCodec(ABC):
    """Encodes and decodes as the model's own tokenizer does."""

    special_tokens: Mapping[str, str]
    """What chats are rendered with, as is `chat_template`."""
    chat_template: str | None

    @property
    @abstractmethod
    def tokenizer(self) -> Any:
        """The tokenizer itself (of the package tokenizers), not to be changed."""

    @property
    @abstractmethod
    def vocab_size(self) -> int:
        """Number of ids that stand for text, added tokens included."""

    @abstractmethod
    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Token ids; begin and end tokens only where the tokenizer itself adds them.

        Rendered chats contain their special tokens: encode those without adding more. ValueError
        for what is no text (half a surrogate pair is none).
        """

    @abstractmethod
    def encode_after(self, text: str) -> list[int]:
        """Token ids of a text that goes on where another ended: no token and no space before it."""

    @abstractmethod
    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """The text of these ids; bytes that are no UTF-8 read as U+FFFD."""

    @abstractmethod
    def detokenizer(self, after: Sequence[int] = ()) -> Detokenizer:
        """A fresh incremental decoder of what comes after these ids."""

    @abstractmethod
    def continuation(self, after: Sequence[int], ids: Sequence[int]) -> str:
        """The text that `ids` add to the text of the ids before them.

        Unlike `decode(ids)` it keeps the space at its start where a tokenizer (SentencePiece)
        leaves out that of a text's first word.
        """


CodecReader = Callable[["ModelFiles"], TextCodec | None]
"""The codec of a model's files; None where they are not of its kind. CheckpointError names a
malformed one."""
