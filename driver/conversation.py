"""A chat whose prompts extend, token for token, what the model has already seen."""

from collections.abc import Mapping, Sequence

from interlock.core.text import TextCodec
from interlock.driver.chat_template import chat_ids, chat_text

MARK = "\ue000"
"""A private character that stands for an answer while the template is rendered around it."""


class Conversation:
    """Makes the prompt of each turn from the chat so far, so that its full pages are found again.

    Usually that is what the chat template renders for all messages. But ids that were generated
    are not always those of their text, and some templates write an answer into the history
    otherwise than they asked for it. Then prompt and answer of the last turn are kept as they were
    (`kept` is true), and only what the template puts after an answer is rendered and encoded. The
    exceptions: an end token that the template does not write there is dropped, and so are tokens
    beyond an answer that was cut (at a stop string). Nothing that a later turn could find in the
    cache is lost with them, save pages of what was cut off.

    A template that cannot be rendered around an answer it does not know gets the whole rendered
    text, whatever was kept.
    """

    def __init__(self, codec: TextCodec) -> None:
        self.messages: list[dict[str, str]] = []
        """Answered turns, and the question that waits for its answer."""
        self.kept = False
        """Whether the last prompt holds earlier ids that the template's text would not give."""
        self._codec = codec
        self._answered = 0
        """Messages up to the last generated answer."""
        self._ids: tuple[int, ...] = ()
        """Prompt and answer of the turn that this answer ended."""
        self._unsaid = ""
        """Text of the answer that these ids lack."""
        self._prompt: tuple[int, ...] = ()

    def ask(self, *messages: Mapping[str, str]) -> tuple[int, ...]:
        """The prompt of the turn that these messages (`role` and `content`) begin.

        A question that was never answered is forgotten. Raises ConfigError without a chat
        template, and with what the template refuses.
        """
        del self.messages[self._answered :]
        asked = [dict(message) for message in messages]
        prompt = tuple(chat_ids(self._codec, [*self.messages, *asked]))
        rest = None if prompt[: len(self._ids)] == self._ids else self._rest(asked)
        self._prompt = prompt if rest is None else rest
        self.kept = self._prompt != prompt
        self.messages += asked
        return self._prompt

    def answer(self, ids: Sequence[int], text: str | None = None) -> None:
        """What the model said: its token ids, and their text where it was cut."""
        if text is None:
            text = self._codec.continuation(self._prompt, ids)
        count, said = self._spoken(ids, text)
        self._ids, self._unsaid = (*self._prompt, *ids[:count]), text[said:]
        self.messages.append({"role": "assistant", "content": text})
        self._answered = len(self.messages)

    def _spoken(self, ids: Sequence[int], text: str) -> tuple[int, int]:
        """How many of the ids have text within `text`, and how much of it."""
        stream, said = self._codec.detokenizer(self._prompt), ""
        best = (0, 0)
        for count, token in enumerate(ids, start=1):
            piece = stream.push((token,))
            said += piece
            if not text.startswith(said):
                return best
            if piece:
                best = count, len(said)
        return (len(ids), len(text)) if said + stream.flush() == text else best

    def _rest(self, asked: Sequence[Mapping[str, str]]) -> tuple[int, ...] | None:
        """The kept ids, then those of what the template puts after an answer; None if unknown."""
        marked = {**self.messages[-1], "content": MARK}
        rendered = chat_text(self._codec, [*self.messages[:-1], marked, *asked])
        if rendered.count(MARK) != 1:
            return None
        ids, after = self._ids, rendered.partition(MARK)[2]
        end = self._codec.decode(ids[-1:], skip_special_tokens=False)
        if end and not self._codec.decode(ids[-1:]):  # an end token
            if after.startswith(end):
                after = after[len(end) :]
            else:
                ids = ids[:-1]
        return (*ids, *self._codec.encode_after(self._unsaid + after))
