"""The engine's cache replayed one request at a time, beside a dictionary and an engine."""

import random
from dataclasses import replace

import pytest

from interlock.core.request import HashedPrompt, Request, SamplingParams
from interlock.driver.tree_replay import replay_tree
from interlock.plugins.cache.block_hash import BlockHashIndex
from interlock.plugins.cache.eviction.arc import ARCEviction
from interlock.plugins.cache.eviction.fifo import FIFOEviction
from interlock.plugins.cache.eviction.lru import LRUEviction
from interlock.plugins.cache.eviction.lruk import LRUKEviction
from interlock.plugins.cache.eviction.s3fifo import S3FIFOEviction
from interlock.plugins.cache.paged import PagedAllocator
from interlock.plugins.cache.radix import RadixIndex
from tests.engine.serving import build, serve

BLOCK = 4


def trace(seed, count=60):
    """Prompts that share beginnings, some of whole blocks, some with a part of one more."""
    draw = random.Random(seed)
    trunks = [[100 * t + b for b in range(8)] for t in range(4)]
    requests = []
    for index in range(count):
        blocks = draw.choice(trunks)[: draw.randint(1, 8)]
        blocks += [1000 * (index + 1) + b for b in range(draw.randint(0, 2))]
        tokens = len(blocks) * BLOCK - draw.choice([0, 0, 1, 3])
        prompt = HashedPrompt(tuple(blocks), BLOCK, tokens)
        requests.append(
            Request(index, hashed_prompt=prompt, arrival_s=float(index),
                    sampling=SamplingParams(max_tokens=1))
        )  # fmt: skip
    return requests


def by_hand(requests, capacity, oldest):
    """(found, used) of a set of prefixes; `oldest` says what is compared: last use or entry."""
    there, found, used = {}, 0, 0
    for now, one in enumerate(requests):
        ids, tokens = one.hashed_prompt.block_ids, one.num_prompt_tokens
        full = [ids[: n + 1] for n in range(tokens // BLOCK)]
        hit = next((n for n, path in enumerate(full) if path not in there), len(full))
        pinned = full[: min(hit, (tokens - 1) // BLOCK)]
        found, used = found + hit, used + len(pinned)
        held = -(-tokens // BLOCK)
        if held > capacity:
            continue
        while len(there) + held - len(pinned) > capacity:
            leaves = [p for p in there if not any(q[: len(p)] == p and q != p for q in there)]
            idle = [p for p in leaves if p not in pinned]
            del there[min(idle, key=lambda p: (there[p][oldest], -len(p)))]
        for path in full:
            there[path] = there[path][0] if path in there else now, now
    return found, used


@pytest.mark.parametrize("capacity", [10, 16, 30])
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("index", [RadixIndex, BlockHashIndex])
def test_lru_finds_what_a_tree_kept_by_hand_finds(seed, capacity, index):
    requests = trace(seed)
    hits = replay_tree(requests, BLOCK, PagedAllocator(capacity), index(), LRUEviction())
    assert (hits.found, hits.used) == by_hand(requests, capacity, 1)
    assert hits.used < hits.found
    assert hits.pages == sum(one.num_prompt_tokens // BLOCK for one in requests)


ALONE = {
    "lru": LRUEviction, "fifo": FIFOEviction, "lruk": lambda: LRUKEviction(history_pages=24),
    "arc": lambda: ARCEviction(24), "s3fifo": lambda: S3FIFOEviction(24),
}  # fmt: skip


@pytest.mark.parametrize("policy", ALONE)
@pytest.mark.parametrize("index", ["radix", "block_hash"])
def test_an_engine_that_serves_one_request_at_a_time_uses_as_many(policy, index):
    requests = trace(7, count=150)
    engine = build(page_size=BLOCK, num_pages=24, max_requests=1, eviction=policy, index=index)
    records = {}
    for one in requests:
        records |= serve(engine, one)
    hits = replay_tree(requests, BLOCK, PagedAllocator(24), RadixIndex(), ALONE[policy]())
    assert hits.used * BLOCK == sum(record.cached_tokens for record in records.values())


def test_the_trace_tells_policies_apart():
    used = {}
    for name, make in ALONE.items():
        requests = trace(7, count=150)
        used[name] = replay_tree(requests, BLOCK, PagedAllocator(24), RadixIndex(), make()).used
    assert len(set(used.values())) >= 4, "a trace that tells them apart"


def test_a_prompt_longer_than_the_pool_is_passed_over():
    prompt = HashedPrompt(tuple(range(9)), BLOCK, 9 * BLOCK)
    long = Request(0, hashed_prompt=prompt)
    hits = replay_tree(
        [long, replace(long, index=1)], BLOCK, PagedAllocator(8), RadixIndex(), LRUEviction()
    )
    assert (hits.pages, hits.found) == (18, 0)
