"""The contract of a prefix index: subclass `IndexContract`, define `make`, run pytest.

The oracle is a dictionary from every indexed prefix to its page (`checked_index.py`).
"""

from typing import Any

import pytest
from hypothesis import settings, strategies
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from interlock.core.batch import PageId
from interlock.core.prefix_index import PrefixIndex
from interlock.core.testing.checked_index import CheckedIndex, Symbols


@pytest.mark.parametrize("units_per_page", [1, 5])
class IndexContract:
    """Every promise of `PrefixIndex`, with rows of one unit (a token) and of five."""

    examples = 40
    """Random histories that the state machine tries."""

    def make(self) -> PrefixIndex:
        """A new empty index; the tests use page ids below 200."""
        raise NotImplementedError

    def checked(self, units_per_page: int) -> CheckedIndex:
        """A new index beside its oracle."""
        return CheckedIndex(self.make(), units_per_page)

    def test_empty_index_matches_nothing(self, units_per_page: int) -> None:
        index = self.checked(units_per_page)
        assert index.match(b"", (1, 2)) == []
        assert index.match(b"", ()) == []
        assert index.index.run_of(PageId(3)) is None
        index.check()

    def test_inserting_no_rows_keeps_nothing(self, units_per_page: int) -> None:
        index = self.checked(units_per_page)
        assert index.insert(b"", ()) == []
        index.check()

    def test_match_is_the_longest_indexed_prefix(self, units_per_page: int) -> None:
        index = self.checked(units_per_page)
        index.insert(b"", (1, 2, 3, 4))
        for prompt in [(1, 2, 3, 4), (1, 2, 3, 4, 5), (1, 2), (1, 2, 9, 4), (9, 2, 3), (2, 3, 4)]:
            index.match(b"", prompt)

    def test_equal_rows_after_other_pages_are_other_pages(self, units_per_page: int) -> None:
        index = self.checked(units_per_page)
        index.insert(b"", (1, 7, 7, 8))
        index.insert(b"", (2, 7, 7, 8))
        index.match(b"", (1, 7, 7, 8))
        index.match(b"", (2, 7, 7, 8))
        index.match(b"", (7, 7, 8))
        index.check()

    def test_salts_share_nothing(self, units_per_page: int) -> None:
        index = self.checked(units_per_page)
        index.insert(b"a", (1, 2))
        assert index.match(b"b", (1, 2)) == []
        assert index.match(b"", (1, 2)) == []
        index.insert(b"b", (1, 2))
        index.match(b"a", (1, 2))
        index.check()

    def test_known_rows_keep_the_page_that_came_first(self, units_per_page: int) -> None:
        index = self.checked(units_per_page)
        first = index.insert(b"", (1, 2, 3))
        second = index.insert(b"", (1, 2, 4))
        assert (second[:2] == first[:2]) == index.index.retains
        index.check()

    def test_chunked_insertion_equals_one_insertion(self, units_per_page: int) -> None:
        for chunks in (1, 2, 3, 6):
            index = self.checked(units_per_page)
            index.serve(b"", (1, 2, 3, 4, 5, 6), chunks)
            index.match(b"", (1, 2, 3, 4, 5, 6, 7))
            index.check()

    def test_insertion_may_leave_an_indexed_run_at_any_page(self, units_per_page: int) -> None:
        for shared in range(6):
            index = self.checked(units_per_page)
            index.serve(b"", (1, 2, 3, 4, 5, 6))
            index.serve(b"", (*range(1, shared + 1), 8, 9))
            index.match(b"", (1, 2, 3, 4, 5, 6))
            index.check()

    def test_isolated_page_ends_its_run_and_statistics_carry_over(
        self, units_per_page: int
    ) -> None:
        index = self.checked(units_per_page)
        pages = [PageId(page) for page in index.insert(b"", (1, 2, 3, 4))]
        if not index.index.retains:
            return
        for page in pages:
            run = index.run_of(page)
            run.created_s, run.last_used_s, run.uses, run.priority = 1.0, 2.0, 3, 4
            run.state["weight"] = 5.0
        index.isolate(pages[1])
        index.check()
        for page in pages:
            run = index.run_of(page)
            assert (run.created_s, run.last_used_s, run.uses, run.priority) == (1.0, 2.0, 3, 4)
            assert run.state == {"weight": 5.0}
        index.run_of(pages[0]).state["weight"] = 6.0
        assert index.run_of(pages[3]).state == {"weight": 5.0}, "halves share one state"

    def test_evicted_page_is_never_returned_by_match(self, units_per_page: int) -> None:
        index = self.checked(units_per_page)
        index.serve(b"", (1, 2, 3, 4))
        index.serve(b"", (1, 2, 5))
        while leaves := index.leaves():
            index.drop_tail(leaves[0], 1)
            index.match(b"", (1, 2, 3, 4))
            index.match(b"", (1, 2, 5))
            index.check()
        assert index.index.num_pages() == 0

    def test_dropped_page_stays_forgotten_when_its_place_is_taken(
        self, units_per_page: int
    ) -> None:
        index = self.checked(units_per_page)
        index.serve(b"", (1, 2, 3, 4))
        while (surplus := len(index.pages) - 2) > 0:
            leaf = index.leaves()[0]
            index.drop_tail(leaf, min(surplus, len(leaf.pages)))
        index.serve(b"", (1, 2, 5))
        index.check()

    def test_reused_page_id_stands_for_its_new_content_only(self, units_per_page: int) -> None:
        index = self.checked(units_per_page)
        index.serve(b"", (1, 2, 3))
        while leaves := index.leaves():
            index.drop_tail(leaves[0], len(leaves[0].pages))
        index.serve(b"", (4, 5, 6, 7))
        assert index.match(b"", (1, 2, 3)) == []
        index.serve(b"", (1, 2, 3))
        index.check()

    def test_kept_keys_know_content_however_it_came(self, units_per_page: int) -> None:
        prompts = [(1, 2, 3, 4), (1, 2, 3, 5), (1, 2, 5, 4), (2, 2, 3, 4)]
        keys: dict[tuple[bytes, Symbols], set[object]] = {}
        for chunks in (1, 2, 4):
            index = self.checked(units_per_page)
            if not index.index.keep_keys():
                return
            for salt in (b"", b"tenant"):
                for prompt in prompts:
                    index.serve(salt, prompt, chunks)
            for (salt, path), page in index.pages.items():
                run = index.run_of(PageId(page))
                assert run.keys is not None
                assert len(run.keys) == len(run.pages)
                at = run.pages.tolist().index(page)
                keys.setdefault((salt, path), set()).add(run.keys.tolist()[at])
        assert all(len(found) == 1 for found in keys.values()), "one content, two keys"
        self.check_keys_differ([key for found in keys.values() for key in found])

    def check_keys_differ(self, keys: list[object]) -> None:
        """Two contents, two keys: true of any key worth keeping, unless made weak for a test."""
        assert len(set(keys)) == len(keys)

    def test_any_history_agrees_with_a_dictionary_of_prefixes(self, units_per_page: int) -> None:
        run_state_machine_as_test(
            lambda: _Machine(self.checked(units_per_page)),  # type: ignore[arg-type]  # any factory works
            settings=settings(
                max_examples=self.examples, stateful_step_count=20, deadline=None, derandomize=True
            ),
        )


_SALTS = strategies.sampled_from([b"", b"tenant"])
_PROMPTS = strategies.lists(strategies.integers(0, 2), min_size=1, max_size=8).map(tuple)


class _Machine(RuleBasedStateMachine):
    """Requests come, share, diverge and are evicted in any order."""

    def __init__(self, checked: CheckedIndex) -> None:
        super().__init__()
        self.checked = checked

    @rule(salt=_SALTS, prompt=_PROMPTS, chunks=strategies.integers(1, 4))
    def serve(self, salt: bytes, prompt: Symbols, chunks: int) -> None:
        self.checked.serve(salt, prompt, chunks)

    @rule(salt=_SALTS, prompt=_PROMPTS, data=strategies.data())
    def insert_what_others_may_have_inserted(self, salt: bytes, prompt: Symbols, data: Any) -> None:
        known = len(self.checked.known(salt, prompt))
        self.checked.insert(salt, prompt, data.draw(strategies.integers(0, known)))

    @rule(salt=_SALTS, prompt=_PROMPTS)
    def match(self, salt: bytes, prompt: Symbols) -> None:
        self.checked.match(salt, prompt)

    @precondition(lambda self: self.checked.pages)
    @rule(data=strategies.data())
    def isolate(self, data: Any) -> None:
        pages = sorted(self.checked.pages.values())
        self.checked.isolate(PageId(data.draw(strategies.sampled_from(pages))))

    @precondition(lambda self: self.checked.pages)
    @rule(data=strategies.data())
    def evict(self, data: Any) -> None:
        leaves = self.checked.leaves()
        run = leaves[data.draw(strategies.integers(0, len(leaves) - 1))]
        self.checked.drop_tail(run, data.draw(strategies.integers(1, len(run.pages))))

    @invariant()
    def runs_agree_with_the_dictionary(self) -> None:
        self.checked.check()
