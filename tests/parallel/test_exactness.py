"""Split engines give the tokens of the reference run alone, whatever happens to the requests."""

from collections import Counter

import pytest

from interlock.core.testing.exactness import MODELS, Walk
from tests.parallel.threads import with_threads

DRAFTERS = ("none", "ngram", "eagle", "replay_chain", "replay_tree")
PAGE_SIZES = (4, 1, 16)
COMMON = {
    "cache/allocator": "paged",
    "cache/eviction": "lru",
    "scheduler/order": "priority",
    "scheduler/victim": "latest",
}


@pytest.fixture(scope="module")
def walk(tmp_path_factory):
    walk = Walk(tmp_path_factory.mktemp("models"))
    walk.registry = with_threads(walk.registry)
    return walk


def cell(number, kind, drafter, **choices):
    return {
        **COMMON,
        "model": kind,
        "page_size": PAGE_SIZES[number % 3],
        "cache_dtype": ("auto", "fp8")[number % 2],
        "attention": "mla" if kind == "mla_moe" else "gqa",
        "cache/index": ("radix", "block_hash")[number % 2],
        "scheduler/chunking": ("prefill_first", "decode_first")[number % 2],
        "spec": drafter,
        **choices,
    }


@pytest.mark.parametrize("size", [2, 4])
def test_every_family_and_drafter_on_ranks_is_exact(walk, size):
    activity: Counter[str] = Counter()
    for number, kind in enumerate(MODELS):
        for turn in range(2) if size == 2 else (number,):
            drafter = DRAFTERS[(number + turn) % len(DRAFTERS)]
            outcome = walk.run(cell(number + turn, kind, drafter, parallel=f"threads{size}"))
            assert not outcome.differences, (kind, drafter, outcome.differences)
            activity += outcome.activity
    wanted = ("hits", "evicted", "preemptions", "chunks", "accepted", "aborted")
    assert not [name for name in wanted if activity[name] == 0]


@pytest.mark.parametrize(
    ("number", "kind", "drafter"),
    [(0, "gqa", "dflash"), (1, "mla_moe", "dspark"), (2, "hybrid", "draft_model")],
)
def test_drafters_of_several_layers_on_ranks_are_exact(walk, number, kind, drafter):
    outcome = walk.run(cell(number, kind, drafter, parallel="threads2"))
    assert not outcome.differences
    assert outcome.activity["hits"]
    assert outcome.activity["drafted"]


@pytest.mark.parametrize(("kind", "drafter"), [("mla_moe", "eagle")])
def test_ranks_in_processes_of_their_own_are_exact(walk, kind, drafter):
    outcome = walk.run(cell(0, kind, drafter, parallel="tensor"))
    assert not outcome.differences
    assert outcome.activity["preemptions"]
    assert outcome.activity["hits"]
