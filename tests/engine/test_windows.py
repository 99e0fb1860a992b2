"""Pages of sliding windows in a running engine: few are held, and hits need those of the window."""

import dataclasses
from functools import cache

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from interlock.core.page_pool import PagePool
from interlock.core.registry import load_registry
from interlock.core.streams import sample_seed
from interlock.core.testing.tiny import WINDOW, write_tiny_checkpoint
from interlock.core.testing.tiny_eagle import write_tiny_eagle
from interlock.core.window_pages import WindowPages
from interlock.plugins.cache.paged import PagedAllocator
from interlock.plugins.speculative import NgramConfig
from interlock.plugins.speculative.heads.options import EagleConfig
from tests.engine.serving import Client, asking, build, outputs, serve, solo, tokens

BUDGET = 12
PROMPT = tokens(19, salt=4)
DECODED = 45

every_index = pytest.mark.parametrize("index", ["radix", "block_hash"])
every_size = pytest.mark.parametrize("page_size", [1, 4, 16])


@pytest.fixture(scope="module", params=["every other layer", "all layers"])
def windowed(request, tmp_path_factory):
    """A model with windows of 8 in every other layer, or in all: then table 0 has no planes."""
    kinds = ["sliding_attention"] * 4 if request.param == "all layers" else None
    families = list(load_registry().families.values())
    extra = {"layer_types": kinds} if kinds else {}
    folder = tmp_path_factory.mktemp("windowed") / "model"
    write_tiny_checkpoint(folder, "hybrid", families, **extra)
    write_tiny_eagle(folder / "eagle", folder)
    return folder


@cache
def alone(model, request):
    """Tokens of a request run alone on the reference composition."""
    return solo(model, [request])[request.index]


def pages_of_window(page_size, new):
    """Pages that entries of a window and `new` tokens can touch at most."""
    return -(-(WINDOW - 1 + new) // page_size) + 1


def most_held(engine, request):
    """Serve a request; its tokens, hit, and most pages held in the window table while it ran."""
    client = Client(engine)
    client.submit(request)
    held = {"prefill": 0, "decode": 0}
    while engine.has_work:
        started = bool(client.tokens[request.index])
        client.step()
        phase = "decode" if started else "prefill"
        held[phase] = max(held[phase], engine.core.cache.pools[1].held)
    record = client.finish()[request.index]
    return record, held


@every_index
@every_size
def test_a_long_decode_and_one_after_a_hit_hold_a_window_of_pages(windowed, index, page_size):
    pages = -(-(len(PROMPT) + 2 * DECODED) // page_size) + 1
    engine = build(
        windowed, index=index, page_size=page_size, num_pages=pages, budget_tokens=BUDGET
    )
    first = asking(0, PROMPT, DECODED, ignore_eos=True)
    record, held = most_held(engine, first)
    assert record.output_token_ids == alone(windowed, first)
    assert 0 < held["prefill"] <= pages_of_window(page_size, BUDGET)
    assert 0 < held["decode"] <= pages_of_window(page_size, 1)

    # The pool holds one request and its cached pages: what slid out is reused on the way.
    again = asking(1, (*PROMPT, *record.output_token_ids), 20, ignore_eos=True)
    record, held = most_held(engine, again)
    assert record.cached_tokens == (len(PROMPT) + DECODED - 1) // page_size * page_size
    assert record.output_token_ids == alone(windowed, again)
    assert 0 < held["prefill"] <= pages_of_window(page_size, BUDGET)
    assert 0 < held["decode"] <= pages_of_window(page_size, 1)


@every_index
@pytest.mark.parametrize("page_size", [1, 4])
@pytest.mark.parametrize("length", [10, 17, 30, 41])
def test_a_hit_is_as_long_as_the_window_pages_that_are_left_allow(
    windowed, index, page_size, length
):
    """The first `gone` window pages, oldest first, are dropped before a request that hits."""
    first = asking(0, PROMPT, 22, ignore_eos=True)
    text = (*PROMPT, *alone(windowed, first))[:length]
    for gone in (1, 8 // page_size, 20 // page_size):
        engine = build(windowed, index=index, page_size=page_size, num_pages=200)
        serve(engine, first)
        engine.core.cache.windows[1].release_oldest(gone)
        hit = serve(engine, asking(1, text, 1))[1]
        counts = range(1, (length - 1) // page_size + 1)
        oldest_seen = {count: count * page_size - WINDOW + 1 for count in counts}
        usable = [count for count, entry in oldest_seen.items() if entry >= gone * page_size]
        assert hit.cached_tokens == max(usable, default=0) * page_size
        assert hit.output_token_ids == alone(windowed, asking(1, text, 1))


@every_index
def test_requests_that_share_windows_under_pressure_stay_right(windowed, index):
    """Window pages of one request are dropped while others that share them still run."""
    text = (*PROMPT, *alone(windowed, asking(0, PROMPT, DECODED, ignore_eos=True)))
    wanted = [
        asking(i, text[:length], 9, temperature=1.0, seed=i)
        for i, length in enumerate((40, 12, 40, 23, 31, 9, 40, 60))
    ]
    engine = build(windowed, index=index, page_size=4, num_pages=22, budget_tokens=BUDGET)
    client = Client(engine)
    client.submit(*wanted[:4])
    client.step(6)
    client.submit(*wanted[4:])
    records = client.finish()
    assert outputs(records) == {r.index: alone(windowed, r) for r in wanted}
    assert engine.core.cache.counters.evicted_pages > 0
    assert sum(record.cached_tokens for record in records.values()) > 0


@given(
    window=st.integers(1, 20),
    page_size=st.integers(1, 6),
    present=st.lists(st.booleans(), min_size=1, max_size=24),
)
def test_usable_prefixes_are_those_whose_last_window_is_here(window, page_size, present):
    count = len(present)
    pool = PagePool(PagedAllocator(count))
    pages = WindowPages(window, page_size, pool, num_anchors=count)
    anchors = np.arange(count, dtype=np.int32)
    taken = pool.take([0], [count])
    for at in range(count):
        pages.adopt(anchors[at : at + 1], taken[at : at + 1], at, at + (not present[at]))
    found = pages.usable_prefixes(anchors)
    for length in range(1, count + 1):
        query = length * page_size
        seen = {entry // page_size for entry in range(max(0, query - window + 1), query)}
        assert found[length - 1] == all(present[page] for page in seen)


@every_size
@pytest.mark.parametrize("spec", [EagleConfig(num_drafts=3), NgramConfig(num_drafts=3)])
def test_drafts_hold_no_more_than_their_own_pages_beside_the_window(windowed, spec, page_size):
    """A verification of three drafts, and in the same step pages for the rows of the next three."""
    pages = -(-(len(PROMPT) + DECODED + 3) // page_size)
    engine = build(windowed, page_size=page_size, num_pages=pages, budget_tokens=BUDGET, spec=spec)
    request = asking(0, PROMPT, DECODED, ignore_eos=True)
    record, held = most_held(engine, request)
    assert record.output_token_ids == alone(windowed, request)
    assert engine.core.ledger.drafted > 0
    assert 0 < held["decode"] <= pages_of_window(page_size, 1 + 2 * 3)


@pytest.mark.parametrize("index", ["none", "radix", "block_hash"])
@every_size
def test_samples_of_one_prompt_hold_a_window_each_once_all_run(windowed, index, page_size):
    """Until then the first one keeps what the others start from."""
    pages = -(-(len(PROMPT) + DECODED) // page_size) * 3
    engine = build(windowed, index=index, page_size=page_size, num_pages=pages, budget_tokens=32)
    request = asking(0, PROMPT, DECODED, n=3, seed=4, temperature=1.0, ignore_eos=True)
    client = Client(engine)
    client.submit(request)
    held = []
    while engine.has_work:
        client.step()
        running = engine.core.queues.running.values()
        if len(running) == 3 and all(live.sequence.length > len(PROMPT) + 1 for live in running):
            held.append(engine.core.cache.pools[1].held)
    records = client.finish()
    assert len(held) > DECODED // 2
    assert max(held) <= 3 * pages_of_window(page_size, 1)
    for sample in range(3):
        sampling = dataclasses.replace(request.sampling, n=1, seed=sample_seed(4, sample))
        one = dataclasses.replace(request, sampling=sampling)
        record = records[(0, sample) if sample else 0]
        assert record.output_token_ids == alone(windowed, one)
        assert sample == 0 or record.shared_tokens == len(PROMPT) - 1
