"""Every allocator keeps the contract; each shows its own waste."""

import numpy as np

from interlock.core.allocator import KVAllocator
from interlock.core.request import RequestId
from interlock.core.testing.allocator_contract import AllocatorContract
from interlock.plugins.cache.buddy import BuddyAllocator
from interlock.plugins.cache.contiguous import ContiguousAllocator
from interlock.plugins.cache.paged import PagedAllocator


class TestPagedAllocator(AllocatorContract):
    def make(self, num_pages: int) -> KVAllocator:
        return PagedAllocator(num_pages)

    def test_new_pool_gives_pages_in_order(self) -> None:
        allocator = PagedAllocator(6)
        assert allocator.take(RequestId(1), 2).tolist() == [0, 1]
        assert allocator.take(RequestId(2), 3).tolist() == [2, 3, 4]

    def test_page_given_back_last_goes_out_first(self) -> None:
        allocator = PagedAllocator(6)
        allocator.take(RequestId(1), 6)
        allocator.give_back(np.array([5, 1], dtype=np.int32))
        allocator.give_back(np.array([3], dtype=np.int32))
        assert allocator.take(RequestId(2), 3).tolist() == [3, 5, 1]

    def test_callers_array_is_not_tied_to_the_free_list(self) -> None:
        allocator = PagedAllocator(4)
        pages = allocator.take(RequestId(1), 2)
        pages[:] = 99
        allocator.give_back(np.array([0, 1], dtype=np.int32))
        assert sorted(allocator.take(RequestId(1), 4).tolist()) == [0, 1, 2, 3]

    def test_pages_in_any_place_serve_a_request(self) -> None:
        allocator = PagedAllocator(6)
        allocator.take(RequestId(1), 6)
        allocator.give_back(np.array([0, 2, 4], dtype=np.int32))
        assert sorted(allocator.take(RequestId(2), 3).tolist()) == [0, 2, 4]


class TestBuddyAllocator(AllocatorContract):
    def make(self, num_pages: int) -> KVAllocator:
        return BuddyAllocator(num_pages, run_pages=2)

    def test_requests_that_grow_in_turns_keep_runs_of_their_own(self) -> None:
        allocator = BuddyAllocator(32, run_pages=8)
        grown: dict[int, list[int]] = {1: [], 2: [], 3: []}
        for _ in range(8):
            for owner, pages in grown.items():
                pages += allocator.take(RequestId(owner), 1).tolist()
        assert grown == {1: [*range(8)], 2: [*range(8, 16)], 3: [*range(16, 24)]}

    def test_the_smallest_block_that_fits_is_split(self) -> None:
        allocator = BuddyAllocator(16)
        allocator.take(RequestId(1), 1)  # free: 1, 2-3, 4-7, 8-15
        assert allocator.take(RequestId(2), 4).tolist() == [4, 5, 6, 7]
        assert allocator.take(RequestId(3), 2).tolist() == [2, 3]
        assert allocator.largest_block() == 8

    def test_freed_halves_merge_and_a_pool_of_any_size_is_used_whole(self) -> None:
        allocator = BuddyAllocator(13)
        assert allocator.largest_block() == 8
        pages = allocator.take(RequestId(1), 13)
        assert sorted(pages.tolist()) == [*range(13)]
        for page in (3, 0, 2, 1):
            allocator.give_back(np.array([page], dtype=np.int32))
        assert allocator.largest_block() == 4

    def test_pages_in_pieces_serve_a_request(self) -> None:
        allocator = BuddyAllocator(8)
        allocator.take(RequestId(1), 8)
        allocator.give_back(np.array([0, 2, 5], dtype=np.int32))
        assert allocator.take(RequestId(2), 4) is None
        assert sorted(allocator.take(RequestId(2), 3).tolist()) == [0, 2, 5]


class TestContiguousAllocator(AllocatorContract):
    def make(self, num_pages: int) -> KVAllocator:
        return ContiguousAllocator(num_pages)

    def test_pages_of_a_request_follow_each_other(self) -> None:
        allocator = ContiguousAllocator(10)
        allocator.open(RequestId(1), 4)
        allocator.open(RequestId(2), 4)
        first = [allocator.take(RequestId(1), count).tolist() for count in (1, 3)]
        assert first == [[0], [1, 2, 3]]
        assert allocator.take(RequestId(2), 2).tolist() == [4, 5]
        assert allocator.reserved_pages() == 2
        assert allocator.free_pages() == 2

    def test_first_run_that_fits_is_used(self) -> None:
        allocator = ContiguousAllocator(10)
        for owner, most in enumerate([2, 1, 3, 4]):
            allocator.open(RequestId(owner), most)
        allocator.close(RequestId(0))
        allocator.close(RequestId(2))
        allocator.open(RequestId(5), 3)
        assert allocator.take(RequestId(5), 3).tolist() == [3, 4, 5]
        allocator.open(RequestId(6), 1)
        assert allocator.take(RequestId(6), 1).tolist() == [0]

    def test_enough_free_pages_in_short_runs_do_not_fit(self) -> None:
        allocator = ContiguousAllocator(6)
        for owner in range(3):
            allocator.open(RequestId(owner), 2)
        allocator.close(RequestId(0))
        allocator.close(RequestId(2))
        assert (allocator.free_pages(), allocator.largest_grant()) == (4, 2)
        assert not allocator.open(RequestId(9), 3)
        allocator.close(RequestId(1))
        assert allocator.largest_grant() == 6
        assert allocator.open(RequestId(9), 6)
        assert allocator.largest_grant() == 0

    def test_request_cannot_outgrow_its_reservation(self) -> None:
        allocator = ContiguousAllocator(6)
        allocator.open(RequestId(1), 2)
        assert allocator.take(RequestId(1), 3) is None
        assert allocator.take(RequestId(1), 2).tolist() == [0, 1]
        assert allocator.take(RequestId(1), 1) is None

    def test_pages_given_back_in_any_order_join_into_one_run(self) -> None:
        allocator = ContiguousAllocator(8)
        allocator.open(RequestId(1), 8)
        pages = allocator.take(RequestId(1), 8)
        allocator.close(RequestId(1))
        allocator.give_back(pages[[6, 0, 2]])
        assert allocator.largest_grant() == 1
        allocator.give_back(pages[[7, 1]])
        assert allocator.largest_grant() == 3
        allocator.give_back(pages[[3, 5, 4]])
        assert allocator.largest_grant() == 8
