"""From overrides to an engine: compose, resolve, build every part, wire them together."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from interlock.conf.hydra_edge import compose
from interlock.core.adapters import AdapterSet
from interlock.core.attention import AttentionBackend
from interlock.core.cache_spec import CacheLayout
from interlock.core.capabilities import MakesText, RunsModel, ServesAttention
from interlock.core.checkpoint import load_decoder
from interlock.core.clock import Clock, VirtualClock, WallClock
from interlock.core.component import BuildContext
from interlock.core.drafter import Drafter, FeatureDrafter, TokenDrafter
from interlock.core.engine import Engine
from interlock.core.engine_core import EngineCore
from interlock.core.errors import ConfigError
from interlock.core.executor import Executor, ModelParts
from interlock.core.intake import Intake
from interlock.core.kv_cache import KVCache
from interlock.core.ledger import StepLedger
from interlock.core.model import AttentionForm, Decoder, ModelDescription
from interlock.core.parallel import Placement
from interlock.core.planes import Planes, torch_dtype
from interlock.core.planner import DraftRules
from interlock.core.pool_size import pool_size
from interlock.core.queues import Policies
from interlock.core.registry import Chosen, Registry, load_registry
from interlock.core.request_features import lacking
from interlock.core.resolver import Resolution, describe_models, resolve
from interlock.core.settings import EngineConfig
from interlock.core.streams import request_seed
from interlock.core.text import TextCodec, load_codec

SIMULATED_MAX_LEN = 1 << 18
"""Longest request where no model sets a limit, in tokens."""


def assemble(overrides: Sequence[str] = (), registry: Registry | None = None) -> Engine:
    """The engine that these overrides choose, as on the command line.

        engine = assemble(["attention=mla", "cache=radix", "spec=eagle"])
        engine.submit("def main():")
        for output in engine.outputs(): ...

    Raises:
        ConfigError: every problem of the configuration at once.
        CheckpointError: the model's files are not what they should be.
    """
    if isinstance(overrides, str):
        raise ConfigError(f"overrides={overrides!r} is one text; give a list of them")
    registry = registry or load_registry()
    config = compose(overrides, registry)
    if config.rerun is not None:
        raise ConfigError(f"rerun={config.rerun}: only the command line runs a run again")
    return build_engine(config, registry)


def build_engine(
    config: EngineConfig, registry: Registry | None = None, clock: Clock | None = None
) -> Engine:
    """The engine of a composed configuration; `clock` replaces the executor's own (for replays)."""
    registry = registry or load_registry()
    if config.strict_plugins:
        registry.require_all_plugins()
    resolution = resolve(config, registry, describe_models(config, registry)).require()
    return _Builder(config, registry, resolution).engine(clock)


@dataclass
class _Builder:
    config: EngineConfig
    registry: Registry
    resolution: Resolution
    classes: dict[str, type] = field(default_factory=dict)

    def __post_init__(self) -> None:
        config, model = self.config, self.resolution.model
        if config.threads is not None:
            torch.set_num_threads(config.threads)
        self.runs_model = RunsModel() in self.resolution.capabilities
        self.device = torch.device(config.device)
        self.dtype = torch_dtype(self.resolution.config.dtype)
        self.max_len = self._max_model_len()
        self.adapters = AdapterSet(config.adapters)
        self.context = BuildContext(
            model=model,
            device=self.device,
            dtype=self.dtype,
            page_size=config.cache.page_size,
            seed=config.seed,
            numerics=config.numerics,
        )

    def _max_model_len(self) -> int:
        model = self.resolution.model
        limit = model.max_positions if self.runs_model else SIMULATED_MAX_LEN
        asked = self.config.max_model_len
        if asked is None:
            return limit
        if self.runs_model and asked > limit:
            why = f" ({model.limited_by})" if model.limited_by else ""
            raise ConfigError(
                f"max_model_len={asked} is beyond the {limit} positions of model {model.name}{why}"
            )
        return asked

    def build(self, seam: str, context: BuildContext | None = None) -> Any:
        """The chosen component of a seam; its type was checked against the seam's interface."""
        built = self.resolution.build(seam, context or self.context)
        self.classes[seam] = type(built)
        return built

    def engine(self, clock: Clock | None) -> Engine:
        """Everything, wired."""
        self.build("parallel")
        model = self.resolution.model
        drafter: Drafter | None = self.build("spec") if self.runs_model else None
        backend: AttentionBackend | None = self.build("attention") if self.runs_model else None
        groups = [*backend.cache_groups(model.attention, 0)] if backend else []
        groups += drafter.cache_groups() if drafter else ()
        layout = CacheLayout.of(groups)
        codec = load_codec(model.files) if model.files else None
        decoder = self._decoder() if backend else None  # before the pool takes what memory is left
        pages = pool_size(self.config, layout, self.max_len, self.dtype, self.device)
        cache = self._cache(layout, pages)
        parts = None
        if backend is not None and decoder is not None:
            planes = Planes(
                layout, [pages] * len(layout.lifetimes), cache.page_size, self.dtype, self.device
            )
            parts = self._model_parts(decoder, backend, drafter, planes)
        executor: Executor = self.build("executor", replace(self.context, parts=parts))
        core = EngineCore(
            cache=cache,
            policies=self._policies(),
            drafts=self._draft_rules(drafter),
            intake=self._intake(codec),
            ledger=StepLedger(),
            seed_of=lambda index: request_seed(self.config.seed, index),
            executor=type(executor).__name__,
            verifier=type(parts.verifier if parts else executor).__name__,
        )
        return Engine(
            core=core,
            executor=executor,
            clock=clock or (VirtualClock() if executor.virtual else WallClock()),
            resolution=self.resolution,
            codec=codec,
            observers=self.registry.observers,
            planes=parts.planes if parts else None,
            dtype=self.dtype,
            classes=self.classes,
        )

    def _cache(self, layout: CacheLayout, pages: int) -> KVCache:
        context = replace(self.context, num_pages=pages)
        return KVCache(
            layout=layout,
            allocators=[self.build("cache/allocator", context) for _ in layout.lifetimes],
            index=self.build("cache/index"),
            policy=self.build("cache/eviction"),
            page_size=self.config.cache.page_size,
            max_requests=self.config.scheduler.max_requests,
            max_tokens=self.max_len,
            max_step_tokens=self.config.scheduler.budget_tokens,
        )

    def _policies(self) -> Policies:
        return Policies(
            order=self.build("scheduler/order"),
            admission=self.build("scheduler/admission"),
            chunking=self.build("scheduler/chunking"),
            victim=self.build("scheduler/victim"),
            budget_tokens=self.config.scheduler.budget_tokens,
            max_requests=self.config.scheduler.max_requests,
        )

    def _draft_rules(self, drafter: Drafter | None) -> DraftRules:
        """From the drafter itself, or from its options where drafts are only simulated."""
        if drafter is None:
            options = self.resolution.chosen["spec"].config
            simulated = int(getattr(options, "num_drafts", 0))
            return DraftRules(self.classes["executor"].__name__, num_drafts=simulated)
        return DraftRules(
            name=type(drafter).__name__,
            num_drafts=drafter.num_drafts,
            lookback_tokens=drafter.lookback_tokens,
            own_rows=bool(drafter.cache_groups()),
            host=drafter if isinstance(drafter, TokenDrafter) else None,
            max_positions=drafter.max_positions,
        )

    def _intake(self, codec: TextCodec | None) -> Intake:
        resolution, model = self.resolution, self.resolution.model
        keys = {seam: chosen.key for seam, chosen in resolution.chosen.items()}
        unsupported = lacking(resolution.capabilities, keys)
        if codec is None:
            why = (
                f"model {model.name!r} has no tokenizer.json; use stop_token_ids and decode the ids"
            )
            unsupported.setdefault(MakesText(), why)
        return Intake(
            vocab_size=model.vocab_size,
            max_model_len=self.max_len,
            eos_token_ids=model.eos_token_ids,
            salt=f"model:{model.name}:{model.files and model.files.identity()}".encode(),
            share_tenants=self.config.cache.share_tenants,
            adapters=self.adapters,
            unsupported=unsupported,
            codec=codec,
            limited_by=model.limited_by if self.max_len == model.max_positions else "",
        )

    def _decoder(self) -> Decoder:
        families = list(self.registry.families.values())
        placement = Placement(
            self.dtype, self.device, adapters=self.adapters, numerics=self.config.numerics
        )
        return load_decoder(self.resolution.model, families, placement)

    def _model_parts(
        self,
        decoder: Decoder,
        backend: AttentionBackend,
        drafter: Drafter | None,
        planes: Planes,
    ) -> ModelParts:
        feature_drafter = drafter if isinstance(drafter, FeatureDrafter) else None
        return ModelParts(
            decoder=decoder,
            attention=backend,
            planes=planes,
            verifier=self.build("spec/verifier"),
            drafter=feature_drafter,
            draft_attention=self._draft_attention(backend, feature_drafter),
            device=self.device,
            adapters=self.adapters,
        )

    def _draft_attention(
        self, backend: AttentionBackend, drafter: FeatureDrafter | None
    ) -> AttentionBackend:
        """The chosen backend if it serves the drafter's form, else an automatic one that does."""
        model = self.resolution.model
        if drafter is None or _serves(self.resolution.chosen["attention"], drafter.form, model):
            return backend
        for component in self.registry.automatic("attention"):
            chosen = self.registry.chosen("attention", component.name)
            if _serves(chosen, drafter.form, model):
                built = chosen.build(self.context)
                assert isinstance(built, AttentionBackend)
                return built
        raise ConfigError(
            f"{self.resolution.chosen['spec'].key} has {drafter.form!r} attention layers, which "
            "no installed attention component computes"
        )


def _serves(chosen: Chosen, form: AttentionForm, model: ModelDescription) -> bool:
    return ServesAttention(form) in set(chosen.component.provides(chosen.config, model))
