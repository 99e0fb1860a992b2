"""The contract of a KV allocator: subclass `AllocatorContract`, define `make`, run pytest."""

from typing import Any

import numpy as np
from hypothesis import settings, strategies
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from interlock.core.allocator import KVAllocator
from interlock.core.batch import Pages
from interlock.core.request import RequestId

POOL_PAGES = 12
NO_PAGES: Pages = np.empty(0, dtype=np.int32)


class AllocatorContract:
    """Every promise of `KVAllocator`."""

    examples = 40
    """Random histories that the state machine tries."""

    def make(self, num_pages: int) -> KVAllocator:
        """A new allocator of `num_pages` free pages."""
        raise NotImplementedError

    def test_pages_for_several_owners_are_those_that_each_would_get_in_turn(self) -> None:
        at_once, in_turn = self.make(8), self.make(8)
        owners, counts = [RequestId(1), RequestId(2), RequestId(3)], [2, 0, 3]
        for owner, count in zip(owners, counts, strict=True):
            assert at_once.open(owner, count)
            assert in_turn.open(owner, count)
        pages = at_once.take_each(owners, counts)
        assert pages is not None
        for owner, count, part in zip(owners, counts, np.split(pages, [2, 2]), strict=True):
            alone = in_turn.take(owner, count)
            assert alone is not None
            assert alone.tolist() == part.tolist()

    def test_new_pool_is_free_and_one_request_can_have_all_of_it(self) -> None:
        allocator = self.make(7)
        assert allocator.num_pages == 7
        assert (allocator.free_pages(), allocator.reserved_pages()) == (7, 0)
        take_everything(allocator)
        assert allocator.free_pages() == allocator.reserved_pages() == 0

    def test_taking_no_page_gives_an_empty_array(self) -> None:
        allocator = self.make(3)
        assert allocator.open(RequestId(1), 0)
        pages = allocator.take(RequestId(1), 0)
        assert pages is not None
        assert len(pages) == 0
        allocator.give_back(pages)
        allocator.close(RequestId(1))
        assert allocator.free_pages() == 3

    def test_short_pool_gives_nothing_and_changes_nothing(self) -> None:
        allocator = self.make(4)
        opened = allocator.open(RequestId(1), 5)
        before = (allocator.free_pages(), allocator.reserved_pages())
        if opened:
            assert allocator.take(RequestId(1), 5) is None
        assert before == (allocator.free_pages(), allocator.reserved_pages())
        assert sum(before) == 4

    def test_pages_outlive_the_owner_that_took_them(self) -> None:
        allocator = self.make(4)
        assert allocator.open(RequestId(1), 3)
        pages = allocator.take(RequestId(1), 2)
        assert pages is not None
        allocator.close(RequestId(1))
        assert (allocator.free_pages(), allocator.reserved_pages()) == (2, 0)
        allocator.check_integrity(pages)
        allocator.give_back(pages)
        take_everything(allocator)

    def test_owner_may_open_again_after_it_was_closed(self) -> None:
        allocator = self.make(4)
        for _ in range(3):
            assert allocator.open(RequestId(1), 4)
            pages = allocator.take(RequestId(1), 4)
            assert pages is not None
            allocator.close(RequestId(1))
            allocator.give_back(pages)

    def test_no_page_is_given_twice_in_any_history(self) -> None:
        run_state_machine_as_test(
            lambda: _Machine(self.make(POOL_PAGES)),  # type: ignore[arg-type]  # any factory works
            settings=settings(
                max_examples=self.examples, stateful_step_count=25, deadline=None, derandomize=True
            ),
        )


def take_everything(allocator: KVAllocator) -> None:
    """Assert that a lone request gets each page of an unused pool once."""
    assert allocator.open(RequestId(999), allocator.num_pages), "an unused pool refused a request"
    pages = allocator.take(RequestId(999), allocator.num_pages)
    assert pages is not None, "an unused pool is short"
    assert sorted(pages.tolist()) == list(range(allocator.num_pages))


class _Machine(RuleBasedStateMachine):
    """The model: pages left to take per open owner, and the set of taken pages."""

    def __init__(self, allocator: KVAllocator) -> None:
        super().__init__()
        self.allocator = allocator
        self.open_owners: dict[RequestId, int] = {}
        self.taken: list[int] = []
        self.last_owner = 0

    def counts(self) -> tuple[int, int]:
        return self.allocator.free_pages(), self.allocator.reserved_pages()

    @rule(most=strategies.integers(0, POOL_PAGES + 1))
    def open(self, most: int) -> None:
        self.last_owner += 1
        before = self.counts()
        if self.allocator.open(RequestId(self.last_owner), most):
            self.open_owners[RequestId(self.last_owner)] = most
        else:
            assert self.counts() == before, "a refused open changed something"

    @precondition(lambda self: self.open_owners)
    @rule(data=strategies.data())
    def take(self, data: Any) -> None:
        owner = data.draw(strategies.sampled_from(sorted(self.open_owners)))
        count = data.draw(strategies.integers(0, self.open_owners[owner]))
        before = self.counts()
        pages = self.allocator.take(owner, count)
        if pages is None:
            assert self.counts() == before, "a refused take changed something"
            assert count > before[0], "a take was refused although enough pages are free"
            assert not self.allocator.reserves, "a reserved page was refused"
            return
        assert pages.dtype == np.int32
        assert len(pages) == count
        assert not set(pages.tolist()) & set(self.taken), "a page was given twice"
        self.open_owners[owner] -= count
        self.taken += pages.tolist()

    @precondition(lambda self: len(self.open_owners) > 1)
    @rule(data=strategies.data())
    def take_each(self, data: Any) -> None:
        owners = data.draw(strategies.permutations(sorted(self.open_owners)))
        counts = [data.draw(strategies.integers(0, self.open_owners[owner])) for owner in owners]
        before = self.counts()
        pages = self.allocator.take_each(owners, counts)
        if pages is None:
            assert self.counts() == before, "a refused take changed something"
            assert sum(counts) > before[0], "a take was refused although enough pages are free"
            assert not self.allocator.reserves, "a reserved page was refused"
            return
        assert len(set(pages.tolist()) - set(self.taken)) == sum(counts), "a page was given twice"
        for owner, count in zip(owners, counts, strict=True):
            self.open_owners[owner] -= count
        self.taken += pages.tolist()

    @precondition(lambda self: self.taken)
    @rule(data=strategies.data())
    def give_back(self, data: Any) -> None:
        pages = data.draw(strategies.lists(strategies.sampled_from(self.taken), unique=True))
        free, reserved = self.counts()
        self.allocator.give_back(np.array(pages, dtype=np.int32))
        self.taken = [page for page in self.taken if page not in pages]
        assert self.counts() == (free + len(pages), reserved)

    @precondition(lambda self: self.open_owners)
    @rule(data=strategies.data())
    def close(self, data: Any) -> None:
        owner = data.draw(strategies.sampled_from(sorted(self.open_owners)))
        total = sum(self.counts())
        self.allocator.close(owner)
        del self.open_owners[owner]
        assert sum(self.counts()) == total, "closing changed how many pages are untaken"
        if not self.open_owners:
            assert self.allocator.reserved_pages() == 0, "pages are reserved for nobody"

    @invariant()
    def pages_are_accounted_for(self) -> None:
        free, reserved = self.counts()
        assert free >= 0
        assert reserved >= 0
        assert self.allocator.reserves or reserved == 0, "pages are reserved without `reserves`"
        self.allocator.check_integrity(np.array(self.taken, dtype=np.int32))

    def teardown(self) -> None:
        for owner in self.open_owners:
            self.allocator.close(owner)
        self.allocator.give_back(np.array(self.taken, dtype=np.int32))
        take_everything(self.allocator)
