"""Engines with a tier that tests can look into, and requests run alone."""

import threading

import numpy as np

from interlock.core.assemble import assemble
from interlock.core.registry import load_registry
from interlock.core.request import SamplingParams
from interlock.core.testing.integrity import check_engine
from interlock.core.testing.memory_tier import MemoryTier, with_store
from interlock.core.testing.tiny import write_tiny_checkpoint
from interlock.core.testing.tiny_eagle import write_tiny_eagle

SIZE = 4


def tiny(directory, kind, seed=0):
    families = list(load_registry().families.values())
    model = write_tiny_checkpoint(directory / f"{kind}-{seed}", kind, families, seed=seed)
    write_tiny_eagle(model / "eagle", model, seed=seed)
    return model


def tokens(count, salt=0):
    return tuple(2 + (salt * 31 + i * i * 7 + i * salt) % 60 for i in range(count))


PROMPTS = [tokens(29, salt) for salt in range(5)]
KINDS = ("gqa", "mla_moe", "hybrid", "sinks")


def base(model, *more):
    return [
        f"model={model}", "dtype=float64", "attention=reference", "threads=1",
        f"cache.page_size={SIZE}", *more,
    ]  # fmt: skip


def tiered(model, *more, store=None, registry=None):
    """An engine whose tier is a MemoryTier, and that store."""
    store = MemoryTier() if store is None else store
    registry = with_store(registry or load_registry(), store)
    chosen = ["cache/tiers=memory", "cache/load=always", "cache.num_pages=12", *more]
    return assemble(base(model, *chosen), registry), store


def greedy(count=5):
    return SamplingParams(max_tokens=count, ignore_eos=True)


def serve(engine, prompts, sampling=None):
    """Records of these prompts, submitted at once, by the order given."""
    now_s = engine.clock.now()
    ids = [engine.submit(prompt, sampling or greedy()) for prompt in prompts]
    records = {}
    while engine.has_work:
        for output in engine.step():
            if output.finished is not None:
                records[output.id] = output.finished
        check_engine(engine)
    assert engine.clock.now() >= now_s
    return [records[id] for id in ids]


def outputs(records):
    return [tuple(record.output_token_ids) for record in records]


def drain(engine, timeout_s=30.0):
    """Let every copy under way end."""
    loads = engine.core.loads
    end_s = engine.clock.now() + timeout_s
    while loads.under_way:
        assert engine.clock.now() < end_s, "a copy never ended"
        loads.transfers.wait(engine.clock, end_s)
        loads.collect(engine.clock.now())
    check_engine(engine)


def assert_nothing_held(engine):
    drain(engine)
    for pool in engine.core.cache.pools:
        assert pool.held == pool.in_transit == pool.moving == 0
        assert pool.allocator.free_pages() + pool.cached == pool.num_pages


def one_by_one(engine, prompts):
    return [serve(engine, [prompt])[0] for prompt in prompts]


def gated_reads(store):
    """Reads wait for this event."""
    gate = threading.Event()
    store.delay = lambda what, _key: gate.wait(100) if what == "read" else None
    return gate


def stored_pages(engine):
    """(key, page) of every indexed page whose content a tier has."""
    tiers = engine.core.cache.tiers
    kept = np.flatnonzero(engine.core.cache.pools[0].kept & tiers._saved)
    return [(tiers._keys[page], int(page)) for page in kept]
