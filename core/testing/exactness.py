"""The exactness walk: every accepted composition gives the tokens of the reference, run alone.

    python -m interlock.core.testing.walk                   # all pairs of choices
    python -m interlock.core.testing.walk --sample 400 --json walk.json

Models are random and in fp64, where token equality is exact, and have a random head of every kind.
Drafters draft in every way that their options offer. The workload is built to hurt
(`hurtful_requests.py`). After every step all page accounts are recomputed from scratch.
"""

import dataclasses
from collections import Counter
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from interlock.conf.find_model import describe_models
from interlock.conf.hydra_edge import compose
from interlock.core.assemble import build_engine
from interlock.core.capabilities import (
    AcceptsAnyDraft,
    Capability,
    RunsBeams,
    RunsModel,
    none_provided,
    none_required,
)
from interlock.core.engine import Engine
from interlock.core.model import ModelDescription
from interlock.core.registry import Registry, load_registry
from interlock.core.request import Request, RequestRecord, Status
from interlock.core.resolver import reasons_against
from interlock.core.settings import AUTO, Choice, EngineConfig
from interlock.core.testing.coverage import Cell
from interlock.core.testing.every_draft import every_draft
from interlock.core.testing.hurtful_requests import (
    ADAPTER,
    end_copies,
    requests,
    sample_of,
    samples_alone,
    serve,
    waves,
)
from interlock.core.testing.replay_drafter import Continuations, replay_component
from interlock.core.testing.sampled_drafter import sampled_component
from interlock.core.testing.tiny import TinyKind, write_tiny_checkpoint
from interlock.core.testing.tiny_adapter import write_adapter
from interlock.core.testing.tiny_heads import write_tiny_heads

MODELS: tuple[TinyKind, ...] = ("gqa", "mla_moe", "hybrid", "caps", "sinks")
PAGE_SIZES = (1, 4, 16)
CACHE_DTYPES = ("auto", "fp8")
BUDGET_TOKENS = 24
SEAMS = (
    "attention", "cache/allocator", "cache/index", "cache/eviction", "scheduler/order",
    "scheduler/chunking", "scheduler/victim", "spec", "spec/length", "executor",
)  # fmt: skip
VERIFIER = "spec/verifier"
TIER = "cache/tiers"
TIERS = {
    "none": ("none", "through"),
    "cpu through": ("cpu", "through"),
    "cpu back": ("cpu", "back"),
}
"""Where pages go beyond the device and cache.write, of stores that need no server and no folder."""
PARTIAL = " partial"
"""Ends the name of an index that also copies parts of pages."""
SAMPLED = ("sampled_tree", "sampled_chain")
"""Drafters of the walk's own that draw from a perturbed target."""
REPLAYS = ("replay_chain", "replay_tree")
"""Drafters of the walk's own that know the right tokens, and often change them."""
DEFAULT_VERIFIER = "target_only"
REFERENCE = {
    "attention": "reference",
    "cache/allocator": "contiguous",
    "cache/index": "none",
    "spec": "none",
    VERIFIER: DEFAULT_VERIFIER,
    "executor": "torch",
}


@dataclass
class Outcome:
    """What one cell of the walk did."""

    cell: Cell
    differences: list[str] = field(default_factory=list)
    activity: Counter[str] = field(default_factory=Counter)


class Walk:
    """Models, the reference tokens of every request, and the cells to run."""

    def __init__(self, directory: Path, registry: Registry | None = None, seed: int = 0) -> None:
        torch.set_num_threads(1)
        self._known = Continuations()
        self.drafts = every_draft(registry or load_registry())
        """Options of what drafts, by the names that cells choose it by."""
        self.registry = dataclasses.replace(registry or load_registry())
        self.registry.components = dict(self.registry.components)
        self.registry.origins = dict(self.registry.origins)
        for name, tree in (("replay_chain", False), ("replay_tree", True)):
            self.registry.components["spec", name] = replay_component(name, self._known, tree=tree)
            self.registry.origins["spec", name] = self.registry.origins["spec", "none"]
        for name, tree in (("sampled_chain", False), ("sampled_tree", True)):
            self.registry.components["spec", name] = sampled_component(name, tree=tree)
            self.registry.origins["spec", name] = self.registry.origins["spec", "none"]
        families = list(self.registry.families.values())
        self._bases: dict[str, EngineConfig] = {}
        self._models: dict[str, ModelDescription] = {}
        for kind in MODELS:
            model = write_tiny_checkpoint(directory / kind, kind, families, seed=seed)
            write_tiny_heads(model, families, seed=seed)
            adapter = write_adapter(model / ADAPTER, model, ("q_proj", "q_b_proj", "down_proj"))
            base = compose(
                [
                    f"model={model}",
                    f"adapters=[{adapter}]",
                    "dtype=float64",
                    "attention=reference",
                    "threads=1",
                ],
                load_registry(),
            )
            self._bases[kind] = base
            (self._models[kind],) = describe_models(base, self.registry)
        self._solo: dict[tuple[str, str, Request], list[tuple[int, ...]]] = {}
        self._refusals: dict[tuple[str, ...], list[str]] = {}
        self._telling = sorted(
            {
                component.seam
                for component in self.registry.components.values()
                if component.seam in SEAMS
                and (component.provides, component.requires) != (none_provided, none_required)
            }
        )

    def factors(self) -> dict[str, list[Any]]:
        """Every seam's choices (without `auto`), the models and the page sizes."""
        names = {s: [n for n in self.registry.names(s) if n != AUTO] for s in SEAMS}
        names["spec"] = ["none", *self.drafts, *REPLAYS]
        names["executor"] = [
            name for name in names["executor"] if RunsModel() in self._provided("executor", name)
        ]
        names["cache/index"] += [
            name + PARTIAL
            for name in names["cache/index"]
            if "partial_pages" in self._options("cache/index", name)
        ]
        fixed = {"model": MODELS, "page_size": PAGE_SIZES, "cache_dtype": CACHE_DTYPES, TIER: TIERS}
        return {name: list(levels) for name, levels in {**fixed, **names}.items()}

    def _options(self, seam: str, name: str) -> set[str]:
        return {
            field.name for field in dataclasses.fields(self.registry.components[seam, name].config)
        }

    def _provided(self, seam: str, name: str) -> set[Capability]:
        component = self.registry.components[seam, name]
        return set(component.provides(component.config(name=name), None))

    def config(self, cell: Mapping[str, Any]) -> EngineConfig:
        """The configuration of a cell: a budget that chunks prompts, a pool that runs short.

        A cell may also choose `parallel`; the walk itself stays on one device. One that does not
        say has cache_dtype auto and no tier. Whatever a tier has is loaded.
        """
        base = self._bases[cell["model"]]
        choices = dict(base.choices)
        for seam, name in cell.items():
            if seam in (*SEAMS, VERIFIER, "parallel"):
                choices[seam] = self._choice(seam, name)
        store, write = TIERS[cell.get(TIER, "none")]
        choices[TIER] = self._choice(TIER, store)
        if store != "none":
            choices["cache/load"] = self._choice("cache/load", "always")
        size = cell["page_size"]
        longest = max(len(r.prompt_token_ids) + r.sampling.max_tokens for r in requests(size))
        pages = -(-longest // size)
        return dataclasses.replace(
            base,
            cache=dataclasses.replace(
                base.cache,
                page_size=size,
                num_pages=pages + pages // 2 + 1,
                dtype=cell.get("cache_dtype", "auto"),
                write=write,
            ),
            scheduler=dataclasses.replace(
                base.scheduler, budget_tokens=BUDGET_TOKENS, max_requests=6
            ),
            choices=choices,
        )

    def _choice(self, seam: str, name: str) -> Choice:
        if seam == "spec" and name in self.drafts:
            options = self.drafts[name]
            return Choice(options.name, options)
        if name.endswith(PARTIAL):
            name = name.removesuffix(PARTIAL)
            config = self.registry.components[seam, name].config
            return Choice(name, config(name=name, partial_pages=True))
        return Choice(name, self.registry.components[seam, name].config(name=name))

    def refusals(self, cell: Mapping[str, Any]) -> list[str]:
        """Why the resolver refuses a cell; empty if it accepts.

        Asked once per choice of the seams where some component provides or requires anything.
        """
        verifier = cell.get(VERIFIER, DEFAULT_VERIFIER)
        told = (cell[seam] for seam in self._telling)
        key = (cell["model"], cell["cache_dtype"], cell.get(TIER, "none"), verifier, *told)
        if key not in self._refusals:
            model = self._models[cell["model"]]
            self._refusals[key] = [*reasons_against(self.config(cell), self.registry, [model])]
        return self._refusals[key]

    def solo(self, kind: str, request: Request, cache_dtype: str = "auto") -> list[tuple[int, ...]]:
        """Tokens of the request run alone on the reference composition, with the same cache.dtype.

        A beam search has several outputs, best first. Quantised rows are read as they are stored,
        so nothing else may change its tokens.
        """
        key = (kind, cache_dtype, dataclasses.replace(request, index=0, arrival_s=0.0))
        if key not in self._solo:
            stored = {"page_size": 16, "cache_dtype": cache_dtype}
            config = self.config({"model": kind, **stored, **REFERENCE})
            config = dataclasses.replace(
                config, cache=dataclasses.replace(config.cache, num_pages=64)
            )
            engine = build_engine(config, self.registry)
            engine.submit(dataclasses.replace(request, arrival_s=0.0))
            records = {o.sample: o.finished for o in engine.outputs() if o.finished}
            engine.close()
            wrong = [r.error for r in records.values() if r.status is not Status.FINISHED]
            assert not wrong, wrong
            self._solo[key] = [
                tuple(record.output_token_ids) for _, record in sorted(records.items())
            ]
        return self._solo[key]

    def run(self, cell: Mapping[str, Any]) -> Outcome:
        """Run one accepted cell and compare every sample with the reference.

        A verifier that is not exact for any draft gives sampled requests other tokens (of the same
        law, or of another): of these it is asked that they come to an end.
        """
        outcome = Outcome(dict(cell))
        with closing(build_engine(self.config(cell), self.registry)) as engine:
            wanted = waves(cell["page_size"], RunsBeams() in engine.resolution.capabilities)
            alone = {
                key: one for wave in wanted for r in wave for key, one in samples_alone(r).items()
            }
            expected = {key: self._expected(cell, key, one) for key, one in alone.items()}
            self._known.sequences = [
                (*one.prompt_token_ids, *expected[key]) for key, one in alone.items()
            ]
            records = dict(serve(engine, wanted))
            end_copies(engine)
        exact = AcceptsAnyDraft() in self._provided(VERIFIER, cell.get(VERIFIER, DEFAULT_VERIFIER))
        for key, right in expected.items():
            drawn = bool(alone[key].sampling.temperature)
            difference = _difference(records[key], right, exact or not drawn)
            if difference:
                outcome.differences.append(f"request, sample {key}: {difference}")
        pool = engine.core.cache.pools[0]
        if pool.held or pool.allocator.free_pages() + pool.cached != pool.num_pages:
            outcome.differences.append("pages are still held after the last request")
        engine.core.ledger.check()
        outcome.activity = _activity(engine, list(records.values()))
        return outcome

    def _expected(
        self, cell: Mapping[str, Any], key: tuple[int, int], alone: Request
    ) -> tuple[int, ...]:
        outputs = self.solo(cell["model"], alone, cell.get("cache_dtype", "auto"))
        return outputs[sample_of(key, alone)]


def _difference(record: RequestRecord, right: tuple[int, ...], same: bool) -> str | None:
    """How a sample differs from what is right; `same`: token for token, as far as it was served."""
    tokens = tuple(record.output_token_ids)
    finished = record.status is Status.FINISHED
    if not same:
        return record.error or ("no tokens" if finished and not tokens else None)
    if tokens == (right if record.status is not Status.ABORTED else right[: len(tokens)]):
        return None
    return f"{record.status.value}: {tokens} != {right} {record.error or ''}"


def _activity(engine: Engine, records: list[RequestRecord]) -> Counter[str]:
    """What happened to the requests, to show that something did."""
    cache, queues, ledger = engine.core.cache, engine.core.queues, engine.core.ledger
    found = Counter(
        hits=cache.counters.hits,
        evicted=cache.counters.evicted_pages,
        duplicates=cache.counters.shared_duplicates,
        partial_tokens=cache.counters.partial_tokens,
        preemptions=queues.counters.preemptions,
        chunks=queues.counters.chunks,
        drafted=ledger.drafted,
        accepted=ledger.accepted,
        aborted=sum(r.status is Status.ABORTED for r in records),
        forked=sum(r.shared_tokens > 0 for r in records),
        padding=ledger.padding,
        beams=sum(r.beam_score is not None for r in records),
    )
    if cache.tiers is not None:
        moved = cache.tiers.counters
        found.update(
            tiered_cells=1,
            loading_cells=int(moved.loaded > 0),
            pages_saved=moved.saved,
            pages_loaded=moved.loaded,
            loads_missed=moved.missed,
            loads_given_up=moved.given_up,
        )
    return found
