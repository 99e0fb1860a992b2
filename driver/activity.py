"""What every chosen component did in a run, and which of them never did anything."""

from dataclasses import asdict
from typing import Any

from interlock.core.engine import Engine


def counters(engine: Engine) -> dict[str, dict[str, Any]]:
    """Seam -> counts of what its component did; zero everywhere means it never acted."""
    core = engine.core
    cache, queues, ledger = core.cache.counters, core.queues.counters, core.ledger
    ran_model = 0 if engine.executor.virtual else ledger.steps
    return {
        "attention": {"steps": ran_model},
        "cache/allocator": {"pages_taken": cache.pages_taken},
        "cache/index": {"hits": cache.hits, "shared_duplicates": cache.shared_duplicates},
        "cache/eviction": {"evicted_pages": cache.evicted_pages},
        "scheduler/order": {"admissions": queues.admissions},
        "scheduler/admission": {"admissions": queues.admissions},
        "scheduler/chunking": {"steps": ledger.steps},
        "scheduler/victim": {"preemptions": queues.preemptions},
        "spec": {"draft_rounds": ledger.draft_rounds, "drafted_tokens": ledger.drafted},
        "spec/verifier": {"draft_rounds": ledger.draft_rounds},
        "parallel": {"steps": ledger.steps},
        "executor": {"steps": ledger.steps},
        "workload": {"requests": core.num_added},
    }


def inert(engine: Engine) -> list[str]:
    """Seams whose component was never exercised: their arm of an ablation measured nothing.

    Components that stand for doing without (an index that keeps nothing, a drafter that never
    drafts) are not reported: not acting is what they are for.
    """
    idle = {seam for seam, counts in counters(engine).items() if not any(counts.values())}
    if not engine.core.cache.index.retains:
        idle -= {"cache/index", "cache/eviction"}
    if engine.core.drafts.num_drafts == 0:
        idle -= {"spec", "spec/verifier"}
    return sorted(idle)


def details(engine: Engine) -> dict[str, Any]:
    """The counters with the token account and the cache's own counts, for the manifest."""
    core = engine.core
    return {
        **counters(engine),
        "cache": asdict(core.cache.counters),
        "scheduler": asdict(core.queues.counters),
        "tokens": core.ledger.tokens(),
    }
