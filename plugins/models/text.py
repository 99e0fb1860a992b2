"""Text to token ids and back with the Hugging Face tokenizer of a model's files."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from tokenizers import Tokenizer

from interlock.core.errors import CheckpointError
from interlock.core.model_files import ModelFiles
from interlock.core.text import Detokenizer, TextCodec

REPLACEMENT = "\ufffd"  # what the tokenizer writes for bytes that are no UTF-8 (yet)
CONTEXT_TOKENS = 8
MOST_HELD = 16
"""Tokens that a window holds back at most: no character has more bytes than four."""
SPECIAL_KEYS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token")


def load_codec(files: ModelFiles) -> "TokenizersCodec | None":
    """The codec of a model; None without a tokenizer.json (then: token ids only).

    Raises CheckpointError that names the file when one is malformed.
    """
    text = files.text("tokenizer.json")
    if text is None:
        return None
    try:
        tokenizer = Tokenizer.from_str(text)
    except Exception as error:  # the library raises bare Exception
        raise CheckpointError(
            f"{files.where('tokenizer.json')}: not a tokenizer: {error}"
        ) from error
    config = files.json("tokenizer_config.json") or {}
    special = {key: _token_text(config.get(key)) for key in SPECIAL_KEYS}
    return TokenizersCodec(
        tokenizer,
        {key: text for key, text in special.items() if text is not None},
        _chat_template(files, config),
    )


class TokenizersCodec(TextCodec):
    """Encodes and decodes as the Hugging Face tokenizer of the directory does.

    `chat_template` and `special_tokens` are what chats are rendered with.
    """

    def __init__(
        self, tokenizer: Tokenizer, special_tokens: Mapping[str, str], chat_template: str | None
    ) -> None:
        tokenizer.no_truncation()
        tokenizer.no_padding()
        # A token that the config calls special is left out of decoded text, as in transformers.
        known = [
            text for text in special_tokens.values() if tokenizer.token_to_id(text) is not None
        ]
        tokenizer.add_special_tokens(known)
        self._tokenizer = tokenizer
        self.special_tokens = dict(special_tokens)
        self.chat_template = chat_template

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer itself, not to be changed."""
        return self._tokenizer

    @property
    def vocab_size(self) -> int:
        """Number of ids that stand for text, added tokens included."""
        return int(self._tokenizer.get_vocab_size(with_added_tokens=True))

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Token ids; begin and end tokens only where tokenizer.json's post-processor adds them.

        Rendered chats contain their special tokens: encode those without adding more. ValueError
        for what is no text (half a surrogate pair is none).
        """
        try:
            return list(self._tokenizer.encode(text, add_special_tokens=add_special_tokens).ids)
        except TypeError as error:
            raise ValueError(f"not a text that can be encoded: {text!r:.80}") from error

    def encode_after(self, text: str) -> list[int]:
        """Token ids of a text that goes on where another ended: no token and no space before it."""
        for before in ("\n", ".", "a"):
            known, both = (self.encode(t, False) for t in (before, before + text))
            if both[: len(known)] == known:
                return both[len(known) :]
        return self.encode(text, False)

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """The text of these ids; bytes that are no UTF-8 read as U+FFFD."""
        return str(self._tokenizer.decode(list(ids), skip_special_tokens=skip_special_tokens))

    def detokenizer(self, after: Sequence[int] = ()) -> Detokenizer:
        """A fresh incremental decoder of what comes after these ids."""
        stream, size = WindowDetokenizer(self), CONTEXT_TOKENS
        # Enough of them that a first word or half a character changes nothing behind them.
        while size < len(after) and self.decode(after[-size:])[-1:] in ("", REPLACEMENT):
            size *= 2
        stream.push(after[-size:])
        return stream

    def continuation(self, after: Sequence[int], ids: Sequence[int]) -> str:
        """The text that `ids` add to the text of the ids before them.

        Unlike `decode(ids)` it keeps the space at its start where a tokenizer (SentencePiece)
        leaves out that of a text's first word.
        """
        stream = self.detokenizer(after)
        return stream.push(ids) + stream.flush()


class WindowDetokenizer(Detokenizer):
    """Turns a growing output into text pieces that join to the text of the whole output.

    A character whose bytes are not complete is held back until they are, or until `flush`. The
    cost of a token does not grow with the output: only a window of recent tokens is decoded.

    A tokenizer with byte fallback decodes a run of byte tokens that is no UTF-8 as U+FFFD for each
    byte, the complete characters in it included. Here those came out when they were complete, and
    only the bytes behind them are spoiled.
    """

    def __init__(self, codec: TokenizersCodec) -> None:
        self._codec = codec
        self._window: list[int] = []
        self._settled = 0
        """Leading tokens of the window that are context: their text was returned in full."""
        self._context = ""
        """The text of those."""
        self._returned = 0
        """Characters that were returned of the text behind it."""

    def push(self, ids: Sequence[int]) -> str:
        """The text that these tokens complete; may be empty."""
        return "".join([self._push(token) for token in ids])

    def flush(self) -> str:
        """What was held back, at the end of the output."""
        piece = self._text()[self._returned :]
        self._returned += len(piece)
        return piece

    def _push(self, token: int) -> str:
        self._window.append(token)
        text = self._text()
        complete = text.rstrip(REPLACEMENT)
        piece = complete[self._returned :]
        self._returned += len(piece)
        if complete != text:  # perhaps the first bytes of a character
            return piece + self._give_up(text)
        if piece:
            self._window = self._window[self._settled :]
            self._settled, self._returned = len(self._window), 0
            self._context = self._codec.decode(self._window)
        elif self._settled:  # a token without text
            self._window.pop()
        elif len(self._window) > MOST_HELD:
            del self._window[1]
        return piece

    def _text(self) -> str:
        """The text of the window behind its context."""
        text = self._codec.decode(self._window)
        if text.startswith(self._context):
            return text[len(self._context) :]
        return self._codec.decode(self._window[self._settled :])

    def _give_up(self, text: str) -> str:
        """What is held back and can no longer become characters, of a window grown too long."""
        pending = self._window[self._settled :]
        if len(pending) <= MOST_HELD:
            return ""
        for cut in range(len(pending) - 4, len(pending)):
            spoiled = self._codec.decode(pending[:cut])
            if spoiled + self._codec.decode(pending[cut:]) == text:
                piece = spoiled[self._returned :]
                self._window, self._settled = pending[cut:], 0
                self._context, self._returned = "", 0
                return piece
        return ""


def _token_text(value: Any) -> str | None:
    """A token in tokenizer_config.json is its text, or an object with `content`."""
    if isinstance(value, Mapping):
        value = value.get("content")
    return value if isinstance(value, str) else None


def _chat_template(files: ModelFiles, config: Mapping[str, Any]) -> str | None:
    """chat_template.jinja, else tokenizer_config.json's `chat_template`: text, or named texts."""
    stated = files.text("chat_template.jinja") or config.get("chat_template")
    if stated is None or isinstance(stated, str):
        return stated
    try:
        named = {entry["name"]: str(entry["template"]) for entry in stated}
    except (TypeError, KeyError) as error:
        raise CheckpointError(
            f"{files.where('tokenizer_config.json')}: chat_template is neither text nor a list of "
            f"named templates: {json.dumps(stated)[:80]}"
        ) from error
    return named.get("default")
