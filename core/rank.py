"""The ranks of a split model: rank 0 hands out its plans, the others begin here and follow."""

from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from interlock.conf.rank_parts import RankParts
from interlock.core.adapters import Adapter
from interlock.core.batch import StepPlan, StepResult
from interlock.core.checkpoint import describe_model, open_model
from interlock.core.errors import RankError
from interlock.core.executor import Executor
from interlock.core.parallel import ParallelStrategy, Ranks
from interlock.core.registry import Registry
from interlock.core.request import SamplingParams
from interlock.core.settings import EngineConfig

FOLLOWED = ("attention", "cache/allocator", "spec", "executor")
"""Seams of which every rank knows the component."""


class Told(NamedTuple):
    """What rank 0 has the others build from."""

    config: EngineConfig
    model: Path
    """Where the model is stored."""
    adapters: tuple[Adapter, ...]


class Leader(Executor):
    """Rank 0's executor: hands each plan to the other ranks, then runs it with them."""

    def __init__(self, executor: Executor, ranks: Ranks, strategy: ParallelStrategy) -> None:
        self.virtual, self.unsteady = executor.virtual, executor.unsteady
        self._executor, self._ranks, self._strategy = executor, ranks, strategy
        self._finished, self._closed = True, False

    def execute(self, plan: StepPlan) -> StepResult:
        """See Executor. RankError when another rank ended or stopped answering."""
        if self._closed:
            raise RankError("the engine was closed, and the other ranks ended with it")
        self._finished = False
        self._ranks.from_first(_to_follow(plan))
        result = self._executor.execute(plan)
        self._finished = True
        return result

    def facts(self) -> dict[str, Any]:
        """See Executor."""
        return self._executor.facts()

    def close(self) -> None:
        """End the other ranks. May be repeated."""
        self._executor.close()
        if self._finished and not self._closed:
            with suppress(RankError):  # it ended before it was asked to
                self._ranks.from_first(None)
        self._closed = True
        self._strategy.close(self._finished)


def follow(ranks: Ranks, registry: Registry) -> None:
    """On a rank other than 0: build the part that rank 0 says, run its plans, return at the end."""
    told: Told | None = None
    told = ranks.from_first(told)
    assert told is not None
    files = open_model(told.model, list(registry.formats.values()))
    model = describe_model(files, list(registry.families.values()))
    choices = [(seam, told.config.choices[seam]) for seam in FOLLOWED]
    chosen = {seam: registry.chosen(seam, of.name, of.config) for seam, of in choices}
    rank = RankParts(told.config, model, registry, chosen, ranks, told.adapters)
    parts, _ = rank.parts(rank.build("spec"), None)
    executor: Executor = rank.build("executor", replace(rank.context, parts=parts))
    plan: StepPlan | None = None
    while (plan := ranks.from_first(None)) is not None:
        executor.execute(plan)
    executor.close()


def _to_follow(plan: StepPlan) -> StepPlan:
    """The plan with no more of the page tables than its rows use.

    Of sampling there is what drafters draw by, if anything is to be drafted.
    """
    batch = plan.batch
    ends = batch.starts + np.diff(batch.row_offsets)
    reach = int(np.maximum(ends, plan.draft_ends).max())
    pages = max(1, -(-reach // batch.page_size))
    tables = tuple(table[batch.slots, :pages] for table in batch.tables)
    slots = np.arange(batch.num_rows)
    drafts = {r: replace(draft, laws=None) for r, draft in batch.drafts.items()}
    return replace(
        plan,
        batch=replace(batch, tables=tables, slots=slots, drafts=drafts),
        params=plan.params if plan.draft_limits.any() else (SamplingParams(),) * batch.num_rows,
        edits={},
    )
