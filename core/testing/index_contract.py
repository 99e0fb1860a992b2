"""The contract of a prefix index: subclass `IndexContract`, define `make`, run pytest.

The oracle is a dictionary from every indexed prefix to its page (`CheckedIndex`).
"""

from typing import Any

import numpy as np
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
from interlock.core.prefix_index import PrefixIndex, PrefixKey, Run, Units

Symbols = tuple[int, ...]
"""One symbol a page: a short name for its row."""


def rows_of(symbols: Symbols, units_per_page: int) -> Units:
    """[pages, units_per_page]: rows of different symbols differ in one place or two."""
    rows = np.zeros((len(symbols), units_per_page), dtype=np.int64)
    for page, symbol in enumerate(symbols):
        rows[page, symbol % units_per_page] = symbol + 1
    return rows


class CheckedIndex:
    """An index whose every answer is compared with a dictionary of all indexed prefixes."""

    def __init__(self, index: PrefixIndex, units_per_page: int) -> None:
        self.index = index
        self.units_per_page = units_per_page
        self.pages: dict[tuple[bytes, Symbols], int] = {}
        self._unused = list(range(200))

    def key(self, salt: bytes, symbols: Symbols) -> PrefixKey:
        """The rows of `symbols`."""
        return PrefixKey(salt, rows_of(symbols, self.units_per_page))

    def known(self, salt: bytes, symbols: Symbols) -> list[int]:
        """The pages that a match of `symbols` must return."""
        prefixes = ((salt, symbols[:end]) for end in range(1, len(symbols) + 1))
        return [self.pages[prefix] for prefix in prefixes if prefix in self.pages]

    def match(self, salt: bytes, symbols: Symbols) -> list[int]:
        """The matched pages, after checking them and that nothing changed."""
        before = self._snapshot()
        pages = self.index.match(self.key(salt, symbols))
        assert pages.dtype == np.int32
        assert pages.tolist() == self.known(salt, symbols)
        assert self._snapshot() == before, "match changed a run"
        return list(pages.tolist())

    def insert(self, salt: bytes, symbols: Symbols, start: int = 0) -> list[int]:
        """Index symbols[start:] with new pages after symbols[:start], which are indexed."""
        after = PageId(self.pages[salt, symbols[:start]]) if start else None
        own = [self._unused.pop() for _ in symbols[start:]]
        known = self.known(salt, symbols)[start:]
        pages, kept = self.index.insert(
            self.key(salt, symbols[start:]), after, np.array(own, dtype=np.int32)
        )
        assert pages.tolist() == known + own[len(known) :], "not the canonical pages"
        if self.index.retains:
            assert kept == len(own) - len(known)
            for end in range(start + 1 + len(known), len(symbols) + 1):
                self.pages[salt, symbols[:end]] = own[end - start - 1]
            self._unused += own[: len(known)]
        else:
            assert kept == 0
            self._unused += own
        return list(pages.tolist())

    def serve(self, salt: bytes, symbols: Symbols, chunks: int = 1) -> None:
        """Match, then index the rest in equal parts, as a request prefilled in chunks does."""
        done = len(self.match(salt, symbols))
        rest = len(symbols) - done
        for chunk in range(1, chunks + 1):
            end = len(symbols) - rest + rest * chunk // chunks
            if end > done and (self.index.retains or done == 0):
                self.insert(salt, symbols[:end], done)
                done = end

    def isolate(self, page: PageId) -> None:
        """Make `page` the end of its run; the run's tail stays the same object."""
        run = self.run_of(page)
        tail = PageId(int(run.pages[-1]))
        self.index.isolate(page)
        assert self.run_of(page).pages[-1] == page
        assert self.run_of(tail) is run, "the tail of a split run is another object"

    def drop_tail(self, run: Run, count: int) -> None:
        """Forget pages at the end of a run without children."""
        expected, parent = run.pages[len(run.pages) - count :].tolist(), run.parent
        children = parent.children if parent else 0
        emptied = count == len(run.pages)
        assert self.index.drop_tail(run, count).tolist() == expected
        assert len(run.pages) == 0 if emptied else self.run_of(PageId(int(run.pages[-1]))) is run
        if parent:
            assert parent.children == children - emptied
        assert all(self.index.run_of(PageId(page)) is None for page in expected)
        self.pages = {path: page for path, page in self.pages.items() if page not in expected}
        self._unused += expected

    def run_of(self, page: PageId) -> Run:
        """The run of a page that must be indexed."""
        run = self.index.run_of(page)
        assert run is not None, f"page {page} is not indexed"
        return run

    def leaves(self) -> list[Run]:
        """Runs that nothing follows, in order of their last page."""
        runs = [run for run in self.index.runs() if run.children == 0]
        return sorted(runs, key=lambda run: int(run.pages[-1]))

    def check(self) -> None:
        """Compare all runs with the dictionary."""
        self.index.check_integrity()
        assert self.index.num_pages() == len(self.pages)
        assert all(self.index.run_of(PageId(page)) is None for page in self._unused)
        paths = {page: path for path, page in self.pages.items()}
        for run in self.index.runs():
            before = paths[int(run.parent.pages[-1])] if run.parent else (run.salt, ())
            assert run.depth_pages == len(before[1])
            for page in run.pages.tolist():
                salt, symbols = paths[page]
                assert (salt, symbols[:-1]) == before, "a page follows another history"
                before = salt, symbols

    def _snapshot(self) -> list[tuple[object, ...]]:
        return [
            (
                id(run), run.pages.tolist(), id(run.parent), run.depth_pages, run.children,
                run.created_s, run.last_used_s, run.uses, run.priority, dict(run.state),
            )
            for run in self.index.runs()
        ]  # fmt: skip


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
        while len(index.pages) > 2:
            index.drop_tail(index.leaves()[0], 1)
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
