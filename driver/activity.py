"""What every chosen component did in a run, and which of them never did anything."""

from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

from interlock.core.capabilities import FollowsGrammars
from interlock.core.engine import Engine
from interlock.core.request import Request
from interlock.core.sampling_params import GRAMMARS
from interlock.core.workload import BadRequest
from interlock.driver.metrics import candidates

TIERS = ("cache/tiers", "cache/tiers/below")
WATCHES = ("cache/events", "cache/snapshot")
Entries = Iterable[Request | BadRequest]


def counters(engine: Engine, entries: Entries = ()) -> dict[str, dict[str, Any]]:
    """Seam -> counts of what its component did; zero everywhere means it never acted.

    So has every adapter, as `adapter NAME`. An executor adds facts in words. `entries` are what was
    asked.
    """
    core = engine.core
    cache, queues, ledger = core.cache.counters, core.queues.counters, core.ledger
    ran_model = 0 if engine.executor.virtual else ledger.steps
    asked = [entry for entry in entries if isinstance(entry, Request)]
    guided = [r for r in asked if any(getattr(r.sampling, kind) is not None for kind in GRAMMARS)]
    named = [r.adapter for r in asked]
    adapters = {f"adapter {name}": named.count(name) for name in core.intake.adapters.names}
    return {
        "attention": {"steps": ran_model},
        "cache/allocator": {"pages_taken": cache.pages_taken},
        "cache/index": {
            "hits": cache.hits,
            "shared_duplicates": cache.shared_duplicates,
            "partial_tokens": cache.partial_tokens,
        },
        "cache/eviction": {"evicted_pages": cache.evicted_pages},
        **_tiers(engine),
        **{seam: {} for seam in WATCHES},
        **{seam: watch.facts() for seam, watch in engine.watches.items()},
        "scheduler/order": {"admissions": queues.admissions},
        "scheduler/admission": {"admissions": queues.admissions},
        "scheduler/chunking": {"steps": ledger.steps},
        "scheduler/victim": {"preemptions": queues.preemptions},
        "spec": {"draft_rounds": ledger.draft_rounds, "drafted_tokens": ledger.drafted},
        "spec/verifier": {"draft_rounds": ledger.draft_rounds},
        "spec/length": {"shortened": ledger.shortened}
        if core.drafts.length.adapts
        else {"draft_rounds": ledger.draft_rounds},
        "parallel": {"steps": ledger.steps},
        "executor": {"steps": ledger.steps, **engine.executor.facts()},
        "structured": {"requests": len(guided)},
        "workload": {"requests": core.num_added},
        **{adapter: {"requests": count} for adapter, count in adapters.items()},
    }


def _tiers(engine: Engine) -> dict[str, dict[str, Any]]:
    """What stores and the load policy did; nothing without a store."""
    loads, tiers = engine.core.loads, engine.core.cache.tiers
    if loads is None or tiers is None:
        return {seam: {} for seam in (*TIERS, "cache/load")}
    found: dict[str, dict[str, Any]] = {seam: {} for seam in TIERS}
    for seam, store in zip(TIERS, loads.stores, strict=False):
        failures = {f"failed_{reason}": times for reason, times in store.failures.items()}
        found[seam] = asdict(tiers.counters) | failures
    return {**found, "cache/load": dict(loads.policy.facts())}


def inert(engine: Engine, entries: Entries = ()) -> list[str]:
    """What was never exercised, seams and adapters: their arm of an ablation measured nothing.

    Components that stand for doing without (an index that keeps nothing, a drafter that never
    drafts) are not reported: not acting is what they are for.
    """
    found = counters(engine, entries).items()
    idle = {seam for seam, of in found if not any(n for n in of.values() if not isinstance(n, str))}
    if not engine.core.cache.index.retains:
        idle -= {"cache/index", "cache/eviction"}
    stores = engine.core.loads.stores if engine.core.loads else ()
    idle -= set(TIERS[len(stores) :]) | (set() if stores else {"cache/load"})
    idle -= set(WATCHES) - engine.watches.keys()
    if engine.core.drafts.num_drafts == 0:
        idle -= {"spec", "spec/verifier", "spec/length"}
    if FollowsGrammars() not in engine.resolution.capabilities:
        idle -= {"structured"}
    return sorted(idle)


def details(engine: Engine, entries: Entries = ()) -> dict[str, Any]:
    """The counters with the token account and the cache's own counts, for the manifest."""
    core = engine.core
    return {
        **counters(engine, entries),
        "cache": asdict(core.cache.counters),
        "scheduler": asdict(core.queues.counters),
        "tokens": core.ledger.tokens(),
        "candidates": candidates(core.ledger),
    }
