"""Scenarios in which real prefix caches failed, played on every index that keeps pages."""

import gc
import tracemalloc

import numpy as np
import pytest

from interlock.core.batch import PageId, Pages
from interlock.core.prefix_index import PrefixIndex, PrefixKey
from interlock.plugins.cache.block_hash import BlockHashIndex
from interlock.plugins.cache.chain_keys import DigestKeys, blake2b_key
from interlock.plugins.cache.radix import RadixIndex

PAGE_SIZE = 16


def full_pages(tokens: np.ndarray, page_size: int = PAGE_SIZE) -> PrefixKey:
    """The rows of the pages that `tokens` fill."""
    count = len(tokens) // page_size
    return PrefixKey(b"", tokens[: count * page_size].reshape(count, page_size))


def usable(index: PrefixIndex, tokens: np.ndarray, page_size: int = PAGE_SIZE) -> int:
    """Tokens of a prompt found in the index when its last token must be computed."""
    return len(index.match(full_pages(tokens[:-1], page_size))) * page_size


def pages_from(first: int, count: int) -> Pages:
    return np.arange(first, first + count, dtype=np.int32)


@pytest.fixture(params=["block_hash", "radix"])
def index(request: pytest.FixtureRequest) -> PrefixIndex:
    return {"block_hash": BlockHashIndex, "radix": RadixIndex}[request.param]()


def test_prompt_of_whole_pages_sent_twice_leaves_tokens_to_compute(index: PrefixIndex) -> None:
    prompt = np.arange(33)
    index.insert(full_pages(prompt[:32]), None, pages_from(0, 2))
    assert usable(index, prompt[:32]) == 16
    assert usable(index, prompt) == 32


def test_evicted_prompt_misses_though_its_page_ids_are_in_use_again(index: PrefixIndex) -> None:
    x, y = np.arange(12), np.arange(100, 116)
    index.insert(full_pages(x, 4), None, pages_from(0, 3))
    while leaves := [run for run in index.runs() if run.children == 0]:
        index.drop_tail(leaves[0], 1)
    index.insert(full_pages(y, 4), None, pages_from(0, 4))
    assert usable(index, x, 4) == 0
    assert len(index.match(full_pages(y, 4))) == 4
    index.check_integrity()


def test_prompt_shorter_than_a_page_is_never_indexed_nor_matched(index: PrefixIndex) -> None:
    short, long = np.arange(5), np.arange(20)
    assert index.insert(full_pages(short), None, pages_from(0, 0)).kept == 0
    assert index.num_pages() == 0
    assert index.insert(full_pages(long), None, pages_from(0, 1)).kept == 1
    assert usable(index, short) == 0
    (run,) = index.runs()
    assert (len(run.pages) * PAGE_SIZE, run.children, run.parent) == (16, 0, None)
    index.check_integrity()


def test_key_function_with_three_values_never_returns_another_prompts_page() -> None:
    def three_keys(parent: bytes, row: bytes) -> bytes:
        return bytes([blake2b_key(parent, row)[0] % 3])

    index = BlockHashIndex(DigestKeys(three_keys, 1, trusted=False))
    draw = np.random.default_rng(5)
    prompts = [draw.integers(0, 50, size=64) for _ in range(20)]
    pages = [pages_from(4 * number, 4) for number in range(20)]
    for prompt, own in zip(prompts, pages, strict=True):
        assert len(index.match(full_pages(prompt))) == 0
        assert index.insert(full_pages(prompt), None, own).pages.tolist() == own.tolist()
    for prompt, own in zip(prompts, pages, strict=True):
        assert index.match(full_pages(prompt)).tolist() == own.tolist()


@pytest.mark.parametrize("kind", [RadixIndex, BlockHashIndex])
def test_memory_after_splits_and_eviction_follows_the_tokens_kept(kind: type[PrefixIndex]) -> None:
    tokens = 100_000
    prompt = np.arange(tokens).reshape(tokens, 1)
    depths = [1, *range(10_000, 100_000, 10_000)]
    index = kind(num_pages=tokens + len(depths))  # type: ignore[call-arg]  # both have it
    index.insert(PrefixKey(b"", prompt[:1]), None, pages_from(0, 1))
    index.drop_tail(next(index.runs()), 1)
    gc.collect()
    tracemalloc.start()
    try:
        index.insert(PrefixKey(b"", prompt), None, pages_from(0, tokens))
        whole_bytes, _ = tracemalloc.get_traced_memory()
        for number, depth in enumerate(depths):
            other = np.array([[-1 - number]])
            index.insert(PrefixKey(b"", other), PageId(depth - 1), pages_from(tokens + number, 1))
        gc.collect()
        split_bytes, _ = tracemalloc.get_traced_memory()
        while index.num_pages() > 1:
            leaf = next(run for run in index.runs() if run.children == 0 and run.pages[0] != 0)
            index.drop_tail(leaf, len(leaf.pages))
        del leaf
        gc.collect()
        kept_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert index.match(PrefixKey(b"", prompt)).tolist() == [0]
    index.check_integrity()
    bytes_per_token = 8 + 4
    assert whole_bytes > tokens * bytes_per_token
    assert split_bytes < 1.2 * whole_bytes
    assert kept_bytes < 20_000


def test_memory_of_a_run_shrinks_as_its_tail_is_evicted() -> None:
    tokens = 50_000
    index = RadixIndex(num_pages=tokens)
    index.insert(PrefixKey(b"", np.arange(tokens).reshape(tokens, 1)), None, pages_from(0, tokens))
    (run,) = index.runs()
    tracemalloc.start()
    try:
        while len(run.pages) > 100:
            index.drop_tail(run, 100)
        kept_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept_bytes < 20_000
    assert run.pages.tolist() == list(range(100))
