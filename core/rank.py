"""What every rank builds and runs: its part of the model, and the loop of those that follow."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from interlock.core.adapters import Adapter, AdapterSet
from interlock.core.allocator import KVAllocator
from interlock.core.attention import AttentionBackend
from interlock.core.batch import StepPlan, StepResult
from interlock.core.cache_spec import CacheLayout
from interlock.core.capabilities import Capability, StoresFp8
from interlock.core.checkpoint import describe_model, load_decoder, open_model
from interlock.core.component import BuildContext
from interlock.core.drafter import Drafter, FeatureDrafter
from interlock.core.errors import ConfigError, RankError
from interlock.core.executor import Executor, ModelParts
from interlock.core.model import AttentionSpec, ModelDescription
from interlock.core.model_requirements import layer_needs
from interlock.core.parallel import ParallelStrategy, Placement, Ranks
from interlock.core.planes import Planes, torch_dtype
from interlock.core.pool_size import pool_sizes
from interlock.core.registry import Chosen, Registry
from interlock.core.request import SamplingParams
from interlock.core.settings import EngineConfig
from interlock.core.verifier import Verifier

FOLLOWED = ("attention", "cache/allocator", "spec", "executor")
"""Seams of which every rank knows the component."""


class Told(NamedTuple):
    """What rank 0 has the others build from."""

    config: EngineConfig
    model: Path
    """Where the model is stored."""
    adapters: tuple[Adapter, ...]


class Rank:
    """Builds this rank's part of a model. `config` is a resolved one with a max_model_len."""

    def __init__(
        self,
        config: EngineConfig,
        model: ModelDescription,
        registry: Registry,
        chosen: Mapping[str, Chosen],
        ranks: Ranks,
        adapters: Sequence[Adapter],
    ) -> None:
        self.config, self.model, self.registry = config, model, registry
        self.chosen, self.ranks = chosen, ranks
        if config.threads is not None:
            torch.set_num_threads(config.threads)
        self.device = ranks.place(torch.device(config.device))
        self.dtype = torch_dtype(config.dtype)
        self.max_len = config.max_model_len or model.max_positions
        self.adapters = AdapterSet(adapters)
        self.weight_facts: dict[str, Any] = {"weight_errors": {}}
        """`weight_bytes` of every rank's part of the target, in memory; and of this rank's part the
        relative rms `weight_errors` of quantised weights, by kind of matrix."""
        self.classes: dict[str, type] = {}
        self.context = BuildContext(
            model=model,
            device=self.device,
            dtype=self.dtype,
            page_size=config.cache.page_size,
            seed=config.seed,
            formats=tuple(registry.formats.values()),
            families=tuple(registry.families.values()),
            numerics=config.numerics,
            cache_dtype=config.cache.dtype,
        )

    def build(self, seam: str, context: BuildContext | None = None) -> Any:
        """The chosen component of a seam; its type was checked against the seam's interface."""
        built = self.chosen[seam].build(context or self.context)
        self.classes[seam] = type(built)
        return built

    def allocator(self, pages: int) -> KVAllocator:
        """An allocator of so many pages."""
        built = self.build("cache/allocator", replace(self.context, num_pages=pages))
        assert isinstance(built, KVAllocator)
        return built

    def pages(self, layout: CacheLayout, weight_bytes: int = 0) -> list[int]:
        """Pages of each table: what the rank with the least memory can have.

        `weight_bytes`, this rank's, are made known to all.
        """
        pages = pool_sizes(
            self.config, layout, self.max_len, self.dtype.itemsize, self.device,
            self.allocator(1).reserves, self.ranks.size,
        )  # fmt: skip
        mine_N1 = torch.tensor([*pages, weight_bytes], device=self.device)[:, None]
        all_NR = self.ranks.concat(mine_N1)
        self.weight_facts["weight_bytes"] = all_NR[-1].tolist()
        return [int(least) for least in all_NR[:-1].amin(-1)]

    def parts(
        self, drafter: Drafter | None, verifier: Verifier | None
    ) -> tuple[ModelParts, list[int]]:
        """Decoder, attention and planes, and the pages of each table. Reads the weights."""
        backend: AttentionBackend = self.build("attention")
        local = tuple(spec.on(self.ranks) for spec in self.model.attention)
        layers = drafter.attention if drafter else ()
        drafting = self._draft_attention(backend, layers)
        own_groups = drafting.cache_groups(layers, self.model.num_layers)
        layout = CacheLayout.of(backend.cache_groups(local, 0) + own_groups)
        families = self.context.families
        numerics, bits = self.config.numerics, self.config.weights
        placement = Placement(self.dtype, self.device, self.ranks, self.adapters, numerics, bits)
        weights = self.model.files.weights() if self.model.files else None
        model = replace(self.model, max_positions=self.max_len)  # no longer rotary tables than used
        decoder = load_decoder(model, families, placement, weights)
        self.weight_facts["weight_errors"] = dict(getattr(decoder, "weight_errors", {}))
        pages = self.pages(layout, weights.given_bytes if weights else 0)  # of what memory is left
        planes = Planes(layout, pages, self.config.cache.page_size, self.dtype, self.device)
        own = drafter if isinstance(drafter, FeatureDrafter) else None
        adapters, ranks = self.adapters, self.ranks
        parts = ModelParts(
            decoder, backend, planes, verifier, own, drafting, self.device, adapters,
            self.config.scheduler.max_requests, self.max_len,
            drafter.num_drafts if drafter else 0, ranks=ranks,
            wants_draws=drafter.wants_draws if drafter else False,
        )  # fmt: skip
        return parts, pages

    def _draft_attention(
        self, backend: AttentionBackend, layers: tuple[AttentionSpec, ...]
    ) -> AttentionBackend:
        """The chosen backend if it serves a drafter's layers, else an automatic one that does."""
        needed = {capability for spec in layers for capability in layer_needs(spec)}
        if self._serves(self.chosen["attention"], needed):
            return backend
        for component in self.registry.automatic("attention"):
            chosen = self.registry.chosen("attention", component.name)
            if self._serves(chosen, needed):
                built = chosen.build(self.context)
                assert isinstance(built, AttentionBackend)
                return built
        raise ConfigError(
            f"{self.chosen['spec'].key} has {sorted({spec.form for spec in layers})} attention "
            f"layers, which no installed attention component computes with their windows, caps and "
            f"sinks (and cache.dtype={self.config.cache.dtype})"
        )

    def _serves(self, chosen: Chosen, needed: set[Capability]) -> bool:
        stored = {StoresFp8()} if self.context.cache_dtype == "fp8" else set()
        return needed | stored <= set(chosen.component.provides(chosen.config, self.model))


class Leader(Executor):
    """Rank 0's executor: hands each plan to the other ranks, then runs it with them."""

    def __init__(self, executor: Executor, ranks: Ranks, strategy: ParallelStrategy) -> None:
        self.virtual = executor.virtual
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
    rank = Rank(told.config, model, registry, chosen, ranks, told.adapters)
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
