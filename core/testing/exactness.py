"""The exactness walk: every accepted composition gives the tokens of the reference, run alone.

    python -m interlock.core.testing.walk                   # pairwise covering set
    python -m interlock.core.testing.walk --full --jobs 2 --json walk.json

Models are random and in fp64, where token equality is exact, and have a random head of every kind.
Drafters draft in every way that their options offer. The workload is built to hurt: equal
and shared prompts arriving in one step, prompt lengths around the page size, a pool too small for
all, aborts in the middle of prefill and decode, greedy beside sampled requests, and a second wave
on a warm cache. After every step all page accounts are recomputed from scratch.
"""

import dataclasses
import itertools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from zlib import crc32

import torch

from interlock.conf.hydra_edge import compose
from interlock.core.assemble import build_engine
from interlock.core.capabilities import (
    AcceptsAnyDraft,
    Capability,
    RunsModel,
    SamplesDrafts,
    none_provided,
    none_required,
)
from interlock.core.engine import Engine
from interlock.core.model import ModelDescription
from interlock.core.registry import Registry, load_registry
from interlock.core.request import Request, RequestRecord, SamplingParams, Status
from interlock.core.resolver import describe_models, reasons_against
from interlock.core.settings import AUTO, Choice, EngineConfig
from interlock.core.streams import sample_seed
from interlock.core.testing.coverage import Cell, full_product, pairwise
from interlock.core.testing.every_draft import every_draft
from interlock.core.testing.integrity import check_engine
from interlock.core.testing.replay_drafter import Continuations, replay_component
from interlock.core.testing.sampled_drafter import sampled_component
from interlock.core.testing.tiny import TinyKind, write_tiny_checkpoint
from interlock.core.testing.tiny_adapter import write_adapter
from interlock.core.testing.tiny_heads import write_tiny_heads

MODELS: tuple[TinyKind, ...] = ("gqa", "mla_moe", "hybrid", "caps", "sinks")
PAGE_SIZES = (1, 4, 16)
CACHE_DTYPES = ("auto", "fp8")
BUDGET_TOKENS = 24
ADAPTER = "adapter"
"""A LoRA adapter that some requests use, beside others with the same prompt that do not."""
SEAMS = (
    "attention", "cache/allocator", "cache/index", "cache/eviction", "scheduler/order",
    "scheduler/chunking", "scheduler/victim", "spec", "executor",
)  # fmt: skip
VERIFIER = "spec/verifier"
MOST_TRIED = 97
"""Cells of a model that verifiers are put into, at most (they are spread over all there are)."""
SAMPLED = ("sampled_tree", "sampled_chain")
"""Drafters of the walk's own that draw from a perturbed target."""
REPLAYS = ("replay_chain", "replay_tree")
"""Drafters of the walk's own that know the right tokens, and often change them."""
REFERENCE = {
    "attention": "reference",
    "cache/allocator": "contiguous",
    "cache/index": "none",
    "spec": "none",
    VERIFIER: "target_only",
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
        self._solo: dict[tuple[str, str, Request], tuple[int, ...]] = {}
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
        fixed = {"model": MODELS, "page_size": PAGE_SIZES, "cache_dtype": CACHE_DTYPES}
        return {name: list(levels) for name, levels in {**fixed, **names}.items()}

    def _provided(self, seam: str, name: str) -> set[Capability]:
        component = self.registry.components[seam, name]
        return set(component.provides(component.config(name=name), None))

    def config(self, cell: Mapping[str, Any]) -> EngineConfig:
        """The configuration of a cell: a budget that chunks prompts, a pool that runs short.

        A cell may also choose `parallel`; the walk itself stays on one device. One that does not
        say has cache_dtype auto.
        """
        base = self._bases[cell["model"]]
        choices = dict(base.choices)
        for seam, name in cell.items():
            if seam in (*SEAMS, VERIFIER, "parallel"):
                choices[seam] = self._choice(seam, name)
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
        return Choice(name, self.registry.components[seam, name].config(name=name))

    def refusals(self, cell: Mapping[str, Any]) -> list[str]:
        """Why the resolver refuses a cell; empty if it accepts.

        Asked once per choice of the seams where some component provides or requires anything.
        """
        verifier = cell.get(VERIFIER, REFERENCE[VERIFIER])
        told = (cell[seam] for seam in self._telling)
        key = (cell["model"], cell["cache_dtype"], verifier, *told)
        if key not in self._refusals:
            model = self._models[cell["model"]]
            self._refusals[key] = [*reasons_against(self.config(cell), self.registry, [model])]
        return self._refusals[key]

    def solo(self, kind: str, request: Request, cache_dtype: str = "auto") -> tuple[int, ...]:
        """The request's tokens run alone on the reference composition, with the same cache.dtype.

        Quantised rows are read as they are stored, so nothing else may change its tokens.
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
            (record,) = [o.finished for o in engine.outputs() if o.finished]
            engine.close()
            assert record.status is Status.FINISHED, record.error
            self._solo[key] = tuple(record.output_token_ids)
        return self._solo[key]

    def run(self, cell: Mapping[str, Any]) -> Outcome:
        """Run one accepted cell and compare every sample with the reference.

        A verifier that is not exact for any draft gives sampled requests other tokens (of the same
        law, or of another): of these it is asked that they come to an end.
        """
        kind, wanted = cell["model"], requests(cell["page_size"])
        alone = {key: one for r in wanted for key, one in samples_alone(r).items()}
        cache_dtype = cell.get("cache_dtype", "auto")
        expected = {key: self.solo(kind, one, cache_dtype) for key, one in alone.items()}
        self._known.sequences = [
            (*one.prompt_token_ids, *expected[key]) for key, one in alone.items()
        ]
        engine = build_engine(self.config(cell), self.registry)
        outcome = Outcome(dict(cell))
        try:
            records = dict(_serve(engine, wanted))
        finally:
            engine.close()
        verifier = cell.get(VERIFIER, REFERENCE[VERIFIER])
        same = AcceptsAnyDraft() in self._provided(VERIFIER, verifier)
        for key, right in expected.items():
            record = records[key]
            tokens = tuple(record.output_token_ids)
            if not same and alone[key].sampling.temperature:
                if record.error or (record.status is Status.FINISHED and not tokens):
                    outcome.differences.append(f"request, sample {key}: {record.error}")
                continue
            aborted = record.status is Status.ABORTED
            if (tokens != right[: len(tokens)]) if aborted else (tokens != right):
                outcome.differences.append(
                    f"request, sample {key} ({record.status.value}): {tokens} != {right} "
                    f"{record.error or ''}"
                )
        cache, queues = engine.core.cache, engine.core.queues
        pool = cache.pools[0]
        if pool.held or pool.allocator.free_pages() + pool.cached != pool.num_pages:
            outcome.differences.append("pages are still held after the last request")
        ledger = engine.core.ledger
        ledger.check()
        outcome.activity.update(
            hits=cache.counters.hits,
            evicted=cache.counters.evicted_pages,
            duplicates=cache.counters.shared_duplicates,
            preemptions=queues.counters.preemptions,
            chunks=queues.counters.chunks,
            drafted=ledger.drafted,
            accepted=ledger.accepted,
            aborted=sum(r.status is Status.ABORTED for r in records.values()),
            forked=sum(r.shared_tokens > 0 for r in records.values()),
            padding=ledger.padding,
        )
        return outcome


def samples_alone(request: Request) -> dict[tuple[int, int], Request]:
    """(index, sample) -> that sample as a request of its own. With several, the seed is set."""
    sampling = request.sampling
    if sampling.n == 1:
        return {(request.index, 0): request}
    assert sampling.seed is not None
    seeds = [sample_seed(sampling.seed, sample) for sample in range(sampling.n)]
    return {
        (request.index, sample): dataclasses.replace(
            request, sampling=dataclasses.replace(sampling, n=1, seed=seed)
        )
        for sample, seed in enumerate(seeds)
    }


def requests(page_size: int) -> list[Request]:
    """The hurtful workload for this page size; indices from 9 on are the second, warm wave."""
    size = page_size
    shared = _tokens(2 * size + 1, salt=1)
    prompts = [
        shared,
        shared,
        shared,
        shared[: 2 * size],
        shared[:size] + _tokens(3, salt=2),
        _tokens(max(1, size - 1), salt=3),
        _tokens(size + 1, salt=4),
        _tokens(23, salt=5),
        _tokens(1, salt=6),
        shared,
        shared[:size] + _tokens(3, salt=2),
        _tokens(23, salt=5),
        shared + _tokens(size, salt=7),
    ]
    return [
        Request(
            index,
            prompt,
            _sampling(index),
            priority=index % 3,
            adapter=ADAPTER if index in (2, 6, 12) else None,
        )
        for index, prompt in enumerate(prompts)
    ]


def _tokens(count: int, salt: int) -> tuple[int, ...]:
    return tuple(2 + (salt * 31 + i * i * 7 + i * salt) % 60 for i in range(count))


def _sampling(index: int) -> SamplingParams:
    kinds: list[dict[str, Any]] = [
        {},
        {"temperature": 0.7, "seed": 5, "repetition_penalty": 1.4, "n": 3},
        {"temperature": 1.3, "top_k": 20, "top_p": 0.9, "seed": 11, "n": 2},
        {"ignore_eos": True, "presence_penalty": 0.8, "frequency_penalty": 0.5},
        {"temperature": 1.0, "min_p": 0.02, "seed": 5},
        {
            "prompt_logprobs": 1,
            "min_tokens": 5,
            "logit_bias": ((1, 9.0), (7, 2.0)),
            "banned_token_ids": (9, 40),
        },
        {"temperature": 0.9, "seed": 3, "allowed_token_ids": (*range(1, 62, 3),), "n": 2},
        {"repetition_penalty": 0.8, "min_tokens": 3, "stop_token_ids": (*range(2, 30),)},
    ]
    return SamplingParams(max_tokens=6 + index % 5, **kinds[index % len(kinds)])


FIRST_WAVE = 9


def _serve(
    engine: Engine, wanted: Sequence[Request]
) -> Iterator[tuple[tuple[int, int], RequestRecord]]:
    """First wave at once, with two aborts on the way; the second when the first has ended."""
    waves = [wanted[:FIRST_WAVE], wanted[FIRST_WAVE:]]
    steps = itertools.count()
    for number, wave in enumerate(waves):
        now_s = engine.clock.now()
        ids = [engine.submit(dataclasses.replace(r, arrival_s=now_s)) for r in wave]
        while engine.has_work:
            for output in engine.step():
                if output.finished is not None:
                    yield (output.index, output.sample), output.finished
            check_engine(engine)
            step = next(steps)
            if number == 0 and step == 1:
                engine.abort(ids[3])
            if number == 0 and step == 5:
                engine.abort(ids[7])


def cells(walk: Walk, full: bool) -> tuple[list[Cell], Counter[str]]:
    """Accepted cells to run, and how many cells of the product were refused, by reason.

    The full product leaves the replaying test drafters to the pairwise set, and its cells are
    dealt out to the executors.
    """
    factors = walk.factors()
    executors = factors["executor"]
    if full:
        factors["spec"] = [name for name in factors["spec"] if name not in REPLAYS]
        factors["executor"] = ["any"]
    refused: Counter[str] = Counter()
    accepted: list[Cell] = []
    for cell in full_product(factors):
        if full:
            cell["executor"] = executors[crc32(repr(cell).encode()) % len(executors)]
        reasons = walk.refusals(cell)
        refused.update(reasons[:1])
        if not reasons:
            accepted.append(cell)
    return (accepted if full else pairwise(accepted)), refused


def verifier_cells(walk: Walk, chosen: Sequence[Cell], models: int) -> list[Cell]:
    """Cells for every verifier, on so many models: of `chosen`, with a drafter that draws.

    It draws trees where the verifier accepts them, else chains.
    """
    return [
        cell
        for turn, verifier in enumerate(walk.registry.names(VERIFIER))
        for kind in [MODELS[(turn + i) % len(MODELS)] for i in range(models)]
        for cell in _with_verifier(walk, chosen, verifier, kind, SAMPLED, turn)[:1]
    ]


def drawing_cells(walk: Walk, chosen: Sequence[Cell]) -> list[Cell]:
    """Cells of `chosen` for every verifier, model, and drafter whose candidates are drawn."""
    drawing = [
        name
        for name, options in walk.drafts.items()
        if SamplesDrafts() in walk.registry.components["spec", options.name].provides(options, None)
    ]
    return [
        cell
        for turn, verifier in enumerate(walk.registry.names(VERIFIER))
        for kind in MODELS
        for cell in _with_verifier(walk, chosen, verifier, kind, drawing, turn)
    ]


def _with_verifier(
    walk: Walk, chosen: Sequence[Cell], verifier: str, kind: str, specs: Sequence[str], turn: int
) -> list[Cell]:
    """For each of these drafters that goes with it, a cell of `chosen` with both on this model."""
    own = [cell for cell in chosen if cell["model"] == kind]
    own = own[:: max(1, len(own) // MOST_TRIED)]
    found: list[Cell] = []
    for number, spec in enumerate(specs):
        cells = [{**cell, "spec": spec, VERIFIER: verifier} for cell in own]
        accepted = [cell for cell in cells if not walk.refusals(cell)]
        found += accepted[(turn + number) % max(1, len(accepted)) :][:1]
    return found
