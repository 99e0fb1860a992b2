"""Where the slots of the pages went, against what the definitions give by hand."""

import pytest

from interlock.driver.kv_memory import MOST_SAMPLES, KVMemory
from interlock.plugins.cache import BuddyConfig
from tests.engine.serving import Client, asking, build

SHARES = ("tokens", "reserved", "internal", "external", "cached", "free")


def watched(**settings):
    engine = build(page_size=4, **{"index": "none", "num_pages": 8} | settings)
    memory = KVMemory(engine)
    engine.watch(memory)
    return Client(engine), memory


def slots(found, steps, pages=8):
    """Shares as sums of slots over the samples."""
    assert found["samples"] == steps
    assert sum(found[kind] for kind in SHARES) == pytest.approx(1)
    return {kind: round(found[kind] * steps * pages * 4) for kind in SHARES if found[kind]}


@pytest.mark.parametrize(("allocator", "reserved"), [("contiguous", 28), ("paged", 12)])
def test_slots_that_a_request_comes_to_are_reserved(allocator, reserved):
    """Prompt 5, output 8: rows 5 to 11 after each step, then none; 12 at the end, in 3 pages."""
    client, memory = watched(allocator=allocator)
    client.submit(asking(0, 5, 8))
    client.finish()
    found = memory.summary()
    tokens = sum(range(5, 12))
    assert slots(found, 8) == {
        "tokens": tokens, "reserved": reserved, "free": 8 * 32 - tokens - reserved
    }  # fmt: skip
    assert found["waste"] == pytest.approx(reserved / (tokens + reserved))
    assert found["pages_per_run"] == pytest.approx((2 * 4 + 3 * 3) / 7)


@pytest.mark.parametrize(("allocator", "internal"), [("contiguous", 15), ("paged", 3)])
def test_slots_behind_an_early_end_are_internal_fragmentation(allocator, internal):
    """Aborted with 7 rows: of 12 slots 5 were never used; of 2 pages one slot."""
    client, memory = watched(allocator=allocator)
    client.submit(asking(0, 5, 8))
    client.step(3)
    client.abort(0)
    client.finish()
    found = slots(memory.summary(), 3)
    assert (found["tokens"], found["reserved"], found["internal"]) == (18, 3, internal)


@pytest.mark.parametrize("allocator", ["contiguous", "paged", "buddy"])
def test_free_pages_that_lie_apart_are_external_fragmentation_while_somebody_waits(allocator):
    """Of three requests side by side the middle one stays; the next needs a longer run."""
    client, memory = watched(allocator=allocator, num_pages=6)
    client.submit(asking(0, 4, 2), asking(1, 2, 7), asking(2, 4, 2), asking(3, 4, 7))
    client.finish()
    found = slots(memory.summary(), client.steps, 6)
    assert ("external" in found) == (allocator == "contiguous")


def test_kept_pages_are_neither_free_nor_waste():
    client, memory = watched(index="radix")
    client.submit(asking(0, 8, 1))
    client.finish()
    assert slots(memory.summary(), 1) == {"cached": 8, "free": 24}
    assert memory.summary()["waste"] is None


def test_a_buddy_keeps_the_pages_of_requests_that_grow_side_by_side_together():
    runs = {}
    for allocator in ("paged", BuddyConfig(run_pages=8), BuddyConfig(run_pages=1)):
        client, memory = watched(allocator=allocator, num_pages=64, max_requests=4)
        client.submit(*(asking(index, 4, 29) for index in range(4)))
        client.finish()
        runs[str(allocator)] = memory.summary()["pages_per_run"]
    paged, long, short = runs.values()
    assert long > 3 * paged
    assert long > short > 0


def test_the_timeline_says_what_requests_hold_and_what_waits_cached_over_time():
    client, memory = watched(index="radix")
    client.submit(asking(0, 5, 8))
    client.finish()
    kept = memory.summary()["timeline"]
    assert kept["now_s"] == sorted(kept["now_s"])
    assert kept["held"][:7] == [2 / 8] * 4 + [3 / 8] * 3
    both = zip(kept["held"], kept["cached"], strict=True)
    assert all(held + cached <= 1 for held, cached in both)
    assert kept["held"][-1] == 0 < kept["cached"][-1]


def test_long_runs_are_sampled_less_often():
    client, memory = watched(num_pages=2)
    for _ in range(2 * MOST_SAMPLES + 10):
        memory(None, None)
    assert MOST_SAMPLES / 2 <= memory.summary()["samples"] <= MOST_SAMPLES
    assert memory.summary()["free"] == 1
    assert not client.engine.has_work


def test_a_run_without_steps_has_no_shares():
    assert watched()[1].summary() == {"samples": 0}
