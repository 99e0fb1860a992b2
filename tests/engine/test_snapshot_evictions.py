"""Snapshots of caches that evict: windows and draft rows come back with what eviction knew."""

from random import Random

import pytest

from interlock.core.assemble import assemble
from interlock.core.testing.integrity import check_engine
from tests.engine.cached_content import companions, drained, walked
from tests.engine.tiers import base, greedy, tiny, tokens

LONGEST = 48
SMALL = ["scheduler.budget_tokens=24", "scheduler.max_requests=4", "cache/snapshot=directory"]


def wave(dice):
    """Prompts that share beginnings, on page edges and not, and how many tokens each asks for."""
    return [
        (
            (
                *tokens(24, salt=50 + dice.randrange(4))[: dice.choice([0, 8, 13, 16, 24])],
                *tokens(dice.randint(1, 10), salt=dice.randrange(4)),
            ),
            dice.randint(1, 6),
        )
        for _ in range(8)
    ]


def serve(engine, wanted, after_step=lambda: None):
    """Tokens and hits of each, in order; the accounts are checked after every step."""
    ids = [engine.submit(prompt, greedy(count)) for prompt, count in wanted]
    records = {}
    while engine.has_work:
        for output in engine.step():
            if output.finished is not None:
                records[output.id] = output.finished
        check_engine(engine)
        after_step()
    found = [records[id] for id in ids]
    return [record.output_token_ids for record in found], [r.cached_tokens for r in found]


@pytest.mark.parametrize(
    ("kind", "drafter", "index", "eviction", "page_size", "seed"),
    [
        ("hybrid", "none", "radix", "lru", 2, 1),
        ("hybrid", "eagle", "radix", "lfu", 4, 2),
        ("sinks", "eagle", "block_hash", "s3fifo", 1, 3),
        ("gqa", "eagle", "block_hash", "arc", 4, 4),
        ("mla_moe", "eagle", "radix", "length_aware", 2, 5),
    ],
)
def test_a_cache_saved_between_evictions_serves_as_if_it_had_stayed(
    tmp_path, kind, drafter, index, eviction, page_size, seed
):
    """Once when the pool runs short in the middle of requests, and once at rest."""
    model, dice = tiny(tmp_path, kind), Random(seed)
    chosen = base(
        model, *SMALL, f"cache={index}", f"cache/eviction={eviction}",
        f"cache.page_size={page_size}", f"cache.num_pages={(LONGEST + 12) // page_size}",
    )  # fmt: skip
    if drafter != "none":
        chosen += [f"spec={drafter}", f"spec.path={model / drafter}"]
    first_wave, second_wave = wave(dice), wave(dice)
    right = assemble(base(model, "cache=none"))
    stays = assemble([*chosen, f"cache.snapshot.save={tmp_path / 'rest'}"])
    snapshot, evicted = stays.watches["cache/snapshot"], stays.core.cache.counters
    held = []

    def save_once_it_evicts():
        if not held and evicted.evicted_pages and stays.core.queues.running:
            snapshot.save(tmp_path / "busy")
            held.extend(walked(stays))

    outputs, _ = serve(stays, first_wave, save_once_it_evicts)
    assert outputs == serve(right, first_wave)[0]
    assert held, "nothing was evicted beside running requests"
    busy = assemble([*chosen, f"cache.snapshot.load={tmp_path / 'busy'}"])
    check_engine(busy)
    assert walked(busy) == held

    snapshot.save(tmp_path / "rest")
    rest = assemble([*chosen, f"cache.snapshot.load={tmp_path / 'rest'}"])
    assert companions(rest) == companions(stays), "and would be dropped in the same order"
    before = evicted.evicted_pages
    outputs, hits = serve(stays, second_wave)
    assert outputs == serve(right, second_wave)[0]
    assert serve(rest, second_wave) == (outputs, hits)
    assert sum(hits) > 0
    assert rest.core.cache.counters.evicted_pages == evicted.evicted_pages - before > 0
    assert drained(rest) == drained(stays)
    assert serve(busy, second_wave)[0] == outputs
