"""The prefix indexes keep the contract, whatever the key function."""

import json
import os
import subprocess
import sys
from hashlib import blake2b, sha256

import numpy as np
import pytest

from interlock.core.batch import PageId
from interlock.core.prefix_index import PrefixIndex
from interlock.core.testing.checked_index import CheckedIndex
from interlock.core.testing.index_contract import IndexContract
from interlock.plugins.cache.block_hash import BlockHashIndex
from interlock.plugins.cache.chain_keys import (
    CHAINS,
    ChainKeys,
    DigestKeys,
    FastKeys,
    blake2b_key,
    sha256_key,
)
from interlock.plugins.cache.key_table import KeyTable
from interlock.plugins.cache.none import NoIndex
from interlock.plugins.cache.radix import RadixIndex


def three_keys(parent: bytes, row: bytes) -> bytes:
    """A key function with three values: nearly everything collides."""
    return bytes([blake2b_key(parent, row)[0] % 3])


class TestBlockHashIndex(IndexContract):
    def make(self) -> PrefixIndex:
        return BlockHashIndex()


class TestBlockHashIndexWithDigests(IndexContract):
    examples = 20

    def make(self) -> PrefixIndex:
        return BlockHashIndex(DigestKeys(sha256_key, 32, trusted=True))


class TestBlockHashIndexWithThreeKeys(IndexContract):
    examples = 40

    def make(self) -> PrefixIndex:
        return BlockHashIndex(DigestKeys(three_keys, 1, trusted=False))

    def check_keys_differ(self, keys: list[object]) -> None:
        assert len(set(keys)) == 3


class TestRadixIndex(IndexContract):
    def make(self) -> PrefixIndex:
        return RadixIndex()


class TestRadixIndexThatKeepsKeys(IndexContract):
    examples = 20

    def make(self) -> PrefixIndex:
        index = RadixIndex()
        assert index.keep_keys()
        return index


class TestNoIndex(IndexContract):
    examples = 10

    def make(self) -> PrefixIndex:
        return NoIndex()

    def test_it_says_that_it_retains_nothing(self, units_per_page: int) -> None:
        assert not NoIndex().retains


def test_keys_are_digests_of_the_parent_key_and_the_row() -> None:
    row = (1).to_bytes(8, "little")
    assert blake2b_key(b"parent", row) == blake2b(b"parent" + row, digest_size=32).digest()
    assert sha256_key(b"parent", row) == sha256(b"parent" + row).digest()


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
    assert not index.index._following.runs


def every_chain() -> list[ChainKeys]:
    return [make() for make in CHAINS.values()]


@pytest.mark.parametrize("chain", every_chain(), ids=lambda chain: type(chain).__name__)
def test_cutting_a_chain_in_two_changes_no_key(chain: ChainKeys) -> None:
    rows = np.random.default_rng(0).integers(0, 2**40, (300, 3))
    whole = chain.keys(b"salt", np.empty(0), rows)
    for cut in (1, 2, 150, 299):
        first = chain.keys(b"salt", np.empty(0), rows[:cut])
        rest = chain.keys(b"salt", first[-1:], rows[cut:])
        assert [*first.tolist(), *rest.tolist()] == whole.tolist()


@pytest.mark.parametrize("chain", every_chain(), ids=lambda chain: type(chain).__name__)
def test_a_key_depends_on_salt_width_and_every_unit_so_far(chain: ChainKeys) -> None:
    rows = np.arange(12).reshape(6, 2)
    base = chain.keys(b"salt", np.empty(0), rows).tolist()
    assert len(set(base)) == 6
    for page, unit in np.ndindex(6, 2):
        other = rows.copy()
        other[page, unit] += 2**40
        keys = chain.keys(b"salt", np.empty(0), other).tolist()
        assert keys[:page] == base[:page]
        assert not set(keys[page:]) & set(base)
    for salt, width in [(b"", 2), (b"salt ", 2), (b"salt", 1), (b"salt", 3)]:
        keys = chain.keys(salt, np.empty(0), np.arange(12).reshape(-1, width)).tolist()
        assert not set(keys) & set(base)


def test_fast_keys_of_many_near_equal_contents_are_all_different() -> None:
    """Counters, shifted counters and single bits: what sums and shifts could let meet."""
    index = np.arange(20_000)
    rows = np.concatenate(
        [index[:, None] * [1, 0, 0], index[:, None] * [0, 1, 0], index[:, None] * [1, 1, 2**32]]
    )
    chain = FastKeys()
    keys = [chain.keys(b"", np.empty(0), row[None]).item() for row in rows[1:]]
    keys += chain.keys(b"", np.empty(0), rows).tolist()
    distinct = len({tuple(row) for row in rows[1:].tolist()})
    assert len(set(keys)) == distinct + len(rows) - 1, "the first row alone comes again"


KEYS = """
import json
import numpy as np
from interlock.plugins.cache.chain_keys import CHAINS
rows = np.arange(8).reshape(4, 2)
found = {name: chain().keys(b"salt", np.empty(0), rows) for name, chain in CHAINS.items()}
print(json.dumps({name: keys.tobytes().hex() for name, keys in found.items()}))
"""


def test_every_process_computes_the_same_keys(capsys: pytest.CaptureFixture[str]) -> None:
    found = [
        subprocess.run(
            [sys.executable, "-c", KEYS],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True, text=True, check=True,
        ).stdout
        for seed in ("1", "2")
    ]  # fmt: skip
    exec(KEYS, {})
    assert set(json.loads(found[0])) == {*CHAINS}
    assert found == [capsys.readouterr().out] * 2


@pytest.mark.parametrize("largest", [2**64 - 1, 6])
def test_table_of_keys_agrees_with_a_dictionary_in_any_history(largest: int) -> None:
    """Seven words: every one has many pages."""
    draw = np.random.default_rng(3)
    table, model, unused = KeyTable(), dict[int, int](), list(range(900))
    for _ in range(200):
        if draw.random() < 0.55:
            fresh = [unused.pop() for _ in range(min(len(unused), int(draw.integers(0, 60))))]
            words = draw.integers(0, largest, len(fresh), dtype=np.uint64, endpoint=True)
            table.add(words, np.array(fresh, dtype=np.int32))
            model |= dict(zip(fresh, words.tolist(), strict=True))
        else:
            gone = draw.permutation([*model])[: draw.integers(0, 90)].astype(np.int32)
            table.remove(gone)
            for page in gone.tolist():
                del model[page]
                unused.append(page)
        assert len(table) == len(model)
        for word in {*list(model.values())[:20], 1}:
            expected = sorted(page for page, known in model.items() if known == word)
            assert sorted(table.pages(word)) == expected


def test_table_of_keys_gives_its_memory_back() -> None:
    table, pages = KeyTable(), np.arange(50_000, dtype=np.int32)
    table.add(np.arange(50_000, dtype=np.uint64), pages)
    table.remove(pages[1:])
    assert list(table.pages(0)) == [0]
    assert len(table._pages) <= 64


def test_fast_keys_of_a_long_history_are_those_of_its_parts() -> None:
    chain, rows = FastKeys(), np.random.default_rng(3).integers(0, 1 << 40, size=(10_001, 2))
    whole = chain.keys(b"salt", np.empty(0, dtype=np.uint64), rows)
    for end in (1, 4095, 4096, 4097, 8192):
        first = chain.keys(b"salt", np.empty(0, dtype=np.uint64), rows[:end])
        rest = chain.keys(b"salt", first[-1:], rows[end:])
        assert np.concatenate([first, rest]).tolist() == whole.tolist()
