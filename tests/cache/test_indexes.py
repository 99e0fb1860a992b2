"""The prefix indexes keep the contract, whatever the key function."""

from hashlib import blake2b

from interlock.core.batch import PageId
from interlock.core.prefix_index import PrefixIndex
from interlock.core.testing.checked_index import CheckedIndex
from interlock.core.testing.index_contract import IndexContract
from interlock.plugins.cache.block_hash import BlockHashIndex, blake2b_key, crc32_key
from interlock.plugins.cache.none import NoIndex
from interlock.plugins.cache.radix import RadixIndex


def three_keys(parent: bytes, row: bytes) -> bytes:
    """A key function with three values: nearly everything collides."""
    return bytes([blake2b_key(parent, row)[0] % 3])


class TestBlockHashIndex(IndexContract):
    def make(self) -> PrefixIndex:
        return BlockHashIndex()


class TestBlockHashIndexWithAChecksum(IndexContract):
    examples = 10

    def make(self) -> PrefixIndex:
        return BlockHashIndex(crc32_key)


class TestBlockHashIndexWithThreeKeys(IndexContract):
    examples = 20

    def make(self) -> PrefixIndex:
        return BlockHashIndex(key_function=three_keys)


class TestRadixIndex(IndexContract):
    def make(self) -> PrefixIndex:
        return RadixIndex()


class TestNoIndex(IndexContract):
    examples = 10

    def make(self) -> PrefixIndex:
        return NoIndex()

    def test_it_says_that_it_retains_nothing(self, units_per_page: int) -> None:
        assert not NoIndex().retains


def test_keys_are_digests_of_the_parent_key_and_the_row() -> None:
    row = (1).to_bytes(8, "little")
    assert blake2b_key(b"parent", row) == blake2b(b"parent" + row, digest_size=16).digest()
    assert blake2b_key(b"parent", row).hex() == "7a67f2be68603be7f5597c26e3292039"
    assert crc32_key(b"123", b"456789") == (0xCBF43926).to_bytes(4, "little")


def test_radix_insertion_after_a_leaf_extends_its_run() -> None:
    index = CheckedIndex(RadixIndex(), 1)
    index.insert(b"", (1, 2))
    (run,) = index.index.runs()
    for length in range(3, 40):
        index.insert(b"", tuple(range(1, length + 1)), length - 1)
    assert list(index.index.runs()) == [run]
    assert len(run.pages) == 39
    index.check()


def test_radix_insertion_through_known_rows_leaves_their_run_as_it_was() -> None:
    index = CheckedIndex(RadixIndex(), 1)
    index.insert(b"", (1, 2))
    (known,) = index.index.runs()
    index.insert(b"", (1, 2, 3))
    assert (len(known.pages), known.children) == (2, 1)
    index.check()


def test_radix_run_with_followers_is_not_extended() -> None:
    index = CheckedIndex(RadixIndex(), 1)
    index.insert(b"", (1, 2))
    shared = index.run_of(PageId(index.pages[b"", (1, 2)]))
    index.serve(b"", (1, 2, 3))
    index.isolate(PageId(index.pages[b"", (1, 2)]))
    index.serve(b"", (1, 2, 4))
    assert sorted(len(run.pages) for run in index.index.runs()) == [1, 1, 2]
    assert shared.children == 0, "the tail keeps the object"
    index.check()


def test_radix_forgets_a_salt_with_its_last_page() -> None:
    index = CheckedIndex(RadixIndex(), 1)
    for number in range(50):
        index.insert(b"salt %d" % number, (1,))
        index.drop_tail(index.leaves()[0], 1)
    assert not index.index._roots
