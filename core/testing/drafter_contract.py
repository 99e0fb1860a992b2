"""The contract of `TokenDrafter`."""

from typing import ClassVar

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from interlock.core.batch import Draft, Ints
from interlock.core.drafter import TokenDrafter
from interlock.core.request import RequestId

REQUEST = RequestId(7)

TEXTS = st.one_of(
    st.lists(st.integers(0, 3), min_size=1, max_size=40),
    st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=40),
)
"""Token ids that repeat a lot, and ids that hardly do."""


def as_view(text: list[int]) -> Ints:
    """The tokens as the engine lends them; writing to them raises."""
    view = np.array([*text, 99, 99], dtype=np.int64)[: len(text)]
    view.setflags(write=False)
    return view


class TokenDrafterContract:
    """Every promise of `TokenDrafter`.

    `remembers`: drafts also depend on what the drafter saw before.
    """

    remembers: ClassVar[bool] = False

    def make(self) -> TokenDrafter:
        """A fresh drafter."""
        raise NotImplementedError

    def test_a_draft_holds_at_most_the_limit_and_num_drafts_tokens(self) -> None:
        @settings(max_examples=100, deadline=None)
        @given(TEXTS, st.integers(0, 12))
        def check(text: list[int], limit: int) -> None:
            drafter = self.make()
            draft = drafter.propose(REQUEST, as_view(text), limit)
            assert len(draft.tokens) <= min(limit, drafter.num_drafts)

        check()

    def test_a_draft_is_a_tree_of_token_ids_with_parents_before_children(self) -> None:
        @settings(max_examples=100, deadline=None)
        @given(TEXTS)
        def check(text: list[int]) -> None:
            draft = self.make().propose(REQUEST, as_view(text), 12)
            assert isinstance(draft, Draft)
            assert all(type(token) is int and token >= 0 for token in draft.tokens)
            if draft.parents is not None:
                assert len(draft.parents) == len(draft.tokens)
                assert all(-1 <= parent < node for node, parent in enumerate(draft.parents))

        check()

    def test_a_draft_depends_on_the_tokens_alone(self) -> None:
        if self.remembers:
            pytest.skip("declares that it remembers")

        @settings(max_examples=60, deadline=None)
        @given(st.lists(TEXTS, min_size=2, max_size=5), st.integers(1, 12))
        def check(texts: list[list[int]], limit: int) -> None:
            used = self.make()
            first = [used.propose(REQUEST, as_view(text), limit) for text in texts]
            again = [used.propose(REQUEST, as_view(text), limit) for text in reversed(texts)]
            fresh = [self.make().propose(REQUEST, as_view(text), limit) for text in texts]
            assert first == again[::-1] == fresh

        check()

    def test_ended_requests_leave_no_trace_in_a_later_one_of_other_tokens(self) -> None:
        drafter, text = self.make(), as_view([1, 2, 3, 1, 2, 3, 1, 2])
        drafter.propose(REQUEST, text, 4)
        drafter.ended(REQUEST, text, 4)
        drafter.ended(RequestId(8), as_view([4, 4, 4]), 2)  # nothing was proposed for it
        after = drafter.propose(RequestId(9), as_view([50, 51, 52]), 4)
        assert after == self.make().propose(REQUEST, as_view([50, 51, 52]), 4)

    def test_the_lent_tokens_are_not_kept(self) -> None:
        lent = np.array([1, 2, 3, 1, 2, 3, 1, 2], dtype=np.int64)
        drafter = self.make()
        draft = drafter.propose(REQUEST, lent, 4)
        tokens = draft.tokens
        lent[:] = 7
        assert draft.tokens == tokens
        assert drafter.propose(REQUEST, as_view([1, 2, 3, 1, 2, 3, 1, 2]), 4) == draft
