"""The contract of `StructuredOutput`: matchers against what a whole text may be."""

import numpy as np
import pytest

from interlock.core.structured import Matcher, StructuredOutput

VOCAB_SIZE, END = 300, 256
"""The end token; tokens 0 .. 255 are bytes in the order of `text_of`."""


def allowed(matcher: Matcher) -> set[int]:
    """The ids that a matcher's mask allows."""
    mask_W = matcher.allowed()
    assert mask_W.dtype == np.int32
    assert len(mask_W) == -(-VOCAB_SIZE // 32)
    bits = np.unpackbits(np.ascontiguousarray(mask_W).view(np.uint8), bitorder="little")
    return {int(token) for token in np.flatnonzero(bits[:VOCAB_SIZE])}


class StructuredContract:
    """Every promise of `StructuredOutput`, for a vocabulary of bytes and one end token."""

    refuses_everything = False
    """True for the component that follows no grammar."""

    def make(self) -> StructuredOutput:
        """An instance for the byte tokenizer of `write_byte_tokenizer` and a vocabulary of 300."""
        raise NotImplementedError

    def ids(self, text: str) -> list[int]:
        """The tokens of a text."""
        raise NotImplementedError

    def test_a_text_that_is_no_grammar_is_a_value_error_in_one_line(self) -> None:
        for kind, text in (
            ("regex", "a("), ("grammar", "root ::="), ("json_schema", "{"), ("json_schema", "3"),
            ("json_schema", '{"type": "nothing"}'),
        ):  # fmt: skip
            with pytest.raises(ValueError, match=r"^[^\n]+$"):
                self.make().matcher(kind, text, [END])  # type: ignore[arg-type]

    def test_only_what_continues_the_text_is_allowed_and_an_end_when_it_is_complete(self) -> None:
        if self.refuses_everything:
            return
        matcher = self.make().matcher("regex", "ab[cd]+", [END])
        a, b, c, d = self.ids("abcd")
        assert allowed(matcher) == {a}
        assert matcher.accept(a)
        assert matcher.accept(b)
        assert allowed(matcher) == {c, d}
        assert not matcher.accept(a)
        assert not matcher.accept(END)
        assert allowed(matcher) == {c, d}
        assert matcher.accept(c)
        assert allowed(matcher) == {c, d, END}

    def test_what_was_accepted_can_be_taken_back_an_end_as_well(self) -> None:
        if self.refuses_everything:
            return
        matcher = self.make().matcher("regex", "ab[cd]+", [END])
        masks = []
        for token in self.ids("abcd"):
            masks.append(allowed(matcher))
            assert matcher.accept(token)
        assert matcher.accept(END)
        matcher.rollback(1)
        for left, count in ((3, 1), (1, 2), (0, 1)):
            matcher.rollback(count)
            assert allowed(matcher) == masks[left]

    def test_matchers_of_one_text_do_not_share_their_place(self) -> None:
        if self.refuses_everything:
            return
        made = self.make()
        first, second = (made.matcher("regex", "ab", [END]) for _ in range(2))
        a, b = self.ids("ab")
        assert first.accept(a)
        assert allowed(second) == {a}
        assert allowed(first) == {b}

    def test_ids_without_text_never_come_and_any_id_can_be_the_end(self) -> None:
        if self.refuses_everything:
            return
        anything = self.make().matcher("regex", "[^x]*", [299])
        found = allowed(anything)
        assert 299 in found
        assert found - {299} <= {*range(256)} - {*self.ids("x")}
        assert {*self.ids("abc~")} <= found
