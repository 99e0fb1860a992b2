"""What every rank of a model builds: its part of decoder and planes, and pages for all."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from interlock.conf.pool_size import pool_sizes
from interlock.core.adapters import Adapter, AdapterSet
from interlock.core.allocator import KVAllocator
from interlock.core.attention import AttentionBackend
from interlock.core.cache_spec import CacheLayout
from interlock.core.capabilities import Capability, StoresFp8
from interlock.core.checkpoint import load_decoder
from interlock.core.component import BuildContext
from interlock.core.drafter import Drafter, FeatureDrafter
from interlock.core.errors import ConfigError
from interlock.core.executor import ModelParts
from interlock.core.model import AttentionSpec, ModelDescription
from interlock.core.model_requirements import layer_needs
from interlock.core.parallel import Placement, Ranks
from interlock.core.planes import Planes, torch_dtype
from interlock.core.registry import Chosen, Registry
from interlock.core.settings import EngineConfig
from interlock.core.verifier import Verifier


class RankParts:
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
