"""From a configuration to an engine: resolve, build every part, wire them together."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from interlock.conf.check_request import request_problems
from interlock.conf.find_model import describe_models
from interlock.conf.longest_request import length_problems, longest_request
from interlock.conf.observers import named_observers
from interlock.conf.page_identity import NotingFormat, page_identity
from interlock.conf.rank_parts import RankParts
from interlock.conf.read_adapters import read_adapters
from interlock.core.cache_spec import CacheLayout
from interlock.core.capabilities import (
    MakesText,
    MovesPages,
    PricesMoves,
    RunsModel,
    SharesPages,
)
from interlock.core.clock import Clock, VirtualClock, WallClock
from interlock.core.component import BuildContext
from interlock.core.draft_length import DraftLength
from interlock.core.draft_rules import DraftRules
from interlock.core.drafter import Drafter, TokenDrafter
from interlock.core.engine import Engine
from interlock.core.engine_core import EngineCore
from interlock.core.errors import ConfigError
from interlock.core.executor import Executor
from interlock.core.intake import Intake
from interlock.core.kv_cache import KVCache
from interlock.core.ledger import StepLedger
from interlock.core.loads import Loads
from interlock.core.model_files import ModelFiles
from interlock.core.options import plain
from interlock.core.parallel import ParallelStrategy, Ranks
from interlock.core.queues import Policies
from interlock.core.rank import Leader, Told, follow
from interlock.core.registry import Registry, load_registry
from interlock.core.request_features import lacking
from interlock.core.resolver import Resolution, resolve
from interlock.core.settings import EngineConfig
from interlock.core.streams import request_seed
from interlock.core.structured import StructuredOutput
from interlock.core.tiered_pages import TieredPages


def build_engine(
    config: EngineConfig, registry: Registry | None = None, clock: Clock | None = None,
    environment: Mapping[str, str] | None = None, folder: Path = Path(),
) -> Engine:  # fmt: skip
    """The engine of a composed configuration; `clock` replaces the executor's own (for replays).

    `folder` is where relative paths of what the run writes lead. `environment` is the process's,
    where it may be one of those that a launcher started to share the model. On a rank other than 0
    nothing is returned: it follows rank 0, then SystemExit(0).
    """
    registry = registry or load_registry()
    if config.strict_plugins:
        registry.require_all_plugins()
    resolution = resolve(config, registry, describe_models(config, registry)).require()
    if problems := length_problems(resolution):
        raise ConfigError(problems)
    context = BuildContext(resolution.model, environment=environment or {})
    strategy: ParallelStrategy = resolution.build("parallel", context)
    try:
        ranks = strategy.start(torch.device(config.device))
        if ranks.rank > 0:
            follow(ranks, registry)
            raise SystemExit(0)
        return _Builder(config, registry, resolution, strategy, ranks, folder).engine(clock)
    except BaseException:
        strategy.close(finished=False)
        raise


class _Builder(RankParts):
    """Rank 0: what every rank builds, and the engine around it."""

    def __init__(
        self, config: EngineConfig, registry: Registry, resolution: Resolution,
        strategy: ParallelStrategy, ranks: Ranks, folder: Path,
    ) -> None:  # fmt: skip
        self.resolution, self.strategy = resolution, strategy
        self.runs_model = RunsModel() in resolution.capabilities
        config = replace(resolution.config, max_model_len=longest_request(resolution))
        found = read_adapters(config.adapters)
        super().__init__(config, resolution.model, registry, resolution.chosen, ranks, found)
        where = self.model.files.path if self.model.files else Path()
        self.to_follow = Told(config, where, found)
        self.classes["parallel"] = type(strategy)
        self.opened: list[ModelFiles] = []
        """Models that components read beside the target."""
        formats = tuple(NotingFormat(form, self.opened) for form in self.context.formats)
        codec = registry.codec(self.model.files)
        self.context = replace(self.context, codec=codec, formats=formats, folder=folder)

    def engine(self, clock: Clock | None) -> Engine:
        """Everything, wired."""
        drafter: Drafter | None = self.build("spec") if self.runs_model else None
        structured: StructuredOutput = self.build("structured")
        parts, layout = None, CacheLayout.of(())
        if self.runs_model:
            self.ranks.from_first(self.to_follow)
            parts, pages = self.parts(drafter, self.build("spec/verifier"))
            layout = parts.planes.layout
        else:
            pages = self.pages(layout)
        cache = self._cache(layout, pages)
        executor: Executor = self.build("executor", replace(self.context, parts=parts))
        loads = self._loads(cache, executor)
        watches = {seam: self.build(seam) for seam in ("cache/events", "cache/snapshot")}
        watches = {seam: watch for seam, watch in watches.items() if watch is not None}
        outlives = loads is not None or "cache/snapshot" in watches  # pages, this process
        length: DraftLength = self.build("spec/length")
        core = EngineCore(
            cache=cache,
            policies=self._policies(),
            drafts=self._draft_rules(drafter, length),
            intake=self._intake(structured, self._salt(layout, drafter) if outlives else None),
            ledger=StepLedger(),
            seed_of=lambda index: request_seed(self.config.seed, index),
            executor=type(executor).__name__,
            verifier=type(parts.verifier if parts else executor).__name__,
            loads=loads,
        )
        if self.ranks.size > 1:
            executor = Leader(executor, self.ranks, self.strategy)
        engine = Engine(
            core=core,
            executor=executor,
            clock=clock or (VirtualClock() if executor.virtual else WallClock()),
            resolution=self.resolution,
            codec=self.context.codec,
            observers=named_observers(self.registry.observers),
            planes=parts.planes if parts else None,
            losses=parts.attention.losses if parts else dict,
            dtype=self.dtype,
            classes=self.classes,
            ranks=self.strategy.facts() | self.weight_facts,
            watches=watches,
        )
        for watch in watches.values():
            watch.attach(engine)
        return engine

    def _cache(self, layout: CacheLayout, pages: list[int]) -> KVCache:
        context = replace(self.context, num_pages=pages[0])
        return KVCache(
            layout=layout,
            allocators=[self.allocator(count) for count in pages],
            index=self.build("cache/index", context),
            policy=self.build("cache/eviction", context),
            page_size=self.config.cache.page_size,
            max_requests=self.config.scheduler.max_requests,
            max_tokens=self.max_len,
            max_step_tokens=self.config.scheduler.budget_tokens,
            shares_pages=SharesPages() in self.resolution.capabilities,
        )

    def _loads(self, cache: KVCache, executor: Executor) -> Loads | None:
        """What moves pages to tiers and back; None where there are none."""
        config, capabilities = self.config, self.resolution.capabilities
        size = config.cache.page_size
        moves = not {MovesPages(), PricesMoves()}.isdisjoint(capabilities)
        context = replace(
            self.context,
            payload_bytes=executor.payload_bytes(size) if moves else 0,
            load_timeout_s=config.cache.load_timeout_s,
        )
        built = [self.build(seam, context) for seam in ("cache/tiers", "cache/tiers/below")]
        policy = self.build("cache/load", context)
        tiers = [tier for tier in built if tier is not None]
        if not tiers:
            return None
        pages = TieredPages(
            cache, executor.transfers(tiers, size), config.cache.write == "through",
            config.cache.load_timeout_s,
        )  # fmt: skip
        limit_ms = config.limits.ttft_ms
        limit_s = None if limit_ms is None else limit_ms / 1e3
        return Loads(cache, pages, policy, config.scheduler.budget_tokens, tiers, limit_s)

    def _salt(self, layout: CacheLayout, drafter: Drafter | None) -> bytes:
        """What pages in tiers depend on: everything but their tokens, adapter and tenant."""
        config, model = self.config, self.model
        files = [model.files] if model.files and self.runs_model else []
        facts = [config.dtype, config.cache.dtype, config.cache.page_size, config.weights]
        facts += [config.numerics, self.device.type, model.name if not files else ""]
        if drafter is not None and drafter.attention:
            files += self.opened
            spec = self.chosen["spec"]
            facts += [spec.key, plain(spec.config), drafter.lookback_tokens]
        return page_identity(files, layout, facts)

    def _policies(self) -> Policies:
        return Policies(
            order=self.build("scheduler/order"),
            admission=self.build("scheduler/admission"),
            chunking=self.build("scheduler/chunking"),
            victim=self.build("scheduler/victim"),
            budget_tokens=self.config.scheduler.budget_tokens,
            max_requests=self.config.scheduler.max_requests,
        )

    def _draft_rules(self, drafter: Drafter | None, length: DraftLength) -> DraftRules:
        """From the drafter itself, or from its options where drafts are only simulated."""
        if drafter is None:
            options = self.resolution.chosen["spec"].config
            name, drafts = self.classes["executor"].__name__, getattr(options, "num_drafts", 0)
            if drafts is None:
                raise ConfigError("spec.num_drafts=null: drafts without a model need a number")
            return DraftRules(name, length, drafts)
        ahead = [0, *(drafter.entries_ahead(n) for n in range(1, drafter.num_drafts + 1))]
        return DraftRules(
            name=type(drafter).__name__,
            length=length,
            num_drafts=drafter.num_drafts,
            depth=drafter.depth,
            lookback_tokens=drafter.lookback_tokens,
            ahead=np.array(ahead) if drafter.attention else None,
            host=drafter if isinstance(drafter, TokenDrafter) else None,
            max_positions=drafter.max_positions,
            whole=drafter.whole,
            one_pass=drafter.one_pass,
        )

    def _intake(self, structured: StructuredOutput, salt: bytes | None) -> Intake:
        resolution, model = self.resolution, self.resolution.model
        keys = {seam: chosen.key for seam, chosen in resolution.chosen.items()}
        unsupported = lacking(resolution.capabilities, keys)
        if self.context.codec is None:
            why = (
                f"model {model.name!r} has no tokenizer.json; use stop_token_ids and decode the ids"
            )
            unsupported.setdefault(MakesText(), why)
        stored = self.config.cache.dtype
        if salt is None:
            identity = model.files and model.files.identity()
            salt = f"model:{model.name}:{identity}:{stored}".encode()
        return Intake(
            vocab_size=model.vocab_size,
            max_model_len=self.max_len,
            eos_token_ids=model.eos_token_ids,
            salt=salt,
            share_tenants=self.config.cache.share_tenants,
            adapters=self.adapters,
            unsupported=unsupported,
            problems=request_problems,
            codec=self.context.codec,
            structured=structured,
            searches=self.registry.searches,
            limited_by=model.limited_by if self.max_len == model.max_positions else "",
        )
