"""Small engines for tests, and a client that checks every account after every step."""

import dataclasses
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from interlock.conf.hydra_edge import compose
from interlock.core.assemble import build_engine
from interlock.core.component import BuildContext, Component
from interlock.core.engine import Engine
from interlock.core.registry import Registry, load_registry
from interlock.core.request import Request, RequestId, RequestRecord, SamplingParams
from interlock.core.settings import Choice, EngineConfig
from interlock.core.testing.integrity import check_engine

SEAMS = {
    "attention": "attention", "allocator": "cache/allocator", "index": "cache/index",
    "eviction": "cache/eviction", "order": "scheduler/order", "admission": "scheduler/admission",
    "chunking": "scheduler/chunking", "victim": "scheduler/victim", "spec": "spec",
    "verifier": "spec/verifier", "length": "spec/length", "executor": "executor",
    "workload": "workload", "structured": "structured", "parallel": "parallel",
    "events": "cache/events", "snapshot": "cache/snapshot", "tiers": "cache/tiers",
}  # fmt: skip
REFERENCE = {"attention": "reference", "allocator": "contiguous", "index": "none"}


@cache
def base_config() -> EngineConfig:
    """The defaults, without drafts, in fp64."""
    return compose(["dtype=float64", "threads=1", "progress=false"], load_registry())


def configured(
    model: Path | None = None,
    registry: Registry | None = None,
    page_size: int = 4,
    num_pages: int = 64,
    budget_tokens: int = 64,
    max_requests: int = 8,
    share_tenants: bool = False,
    max_model_len: int | None = None,
    seed: int = 0,
    **choices: Any,
) -> EngineConfig:
    """A configuration; `choices` are names or option dataclasses by short seam name (`index=`).

    Without a model directory the executor is `fixed` and nothing is computed.
    """
    base, registry = base_config(), registry or load_registry()
    chosen = dict(base.choices)
    for short, choice in {"executor": "torch" if model else "fixed", **choices}.items():
        name = choice if isinstance(choice, str) else choice.name
        seam = SEAMS[short]
        options = registry.components[seam, name].config(name=name)
        chosen[seam] = Choice(name, options if isinstance(choice, str) else choice)
    return dataclasses.replace(
        base,
        model=str(model) if model else base.model,
        seed=seed,
        max_model_len=max_model_len,
        cache=dataclasses.replace(
            base.cache, page_size=page_size, num_pages=num_pages, share_tenants=share_tenants
        ),
        scheduler=dataclasses.replace(
            base.scheduler, budget_tokens=budget_tokens, max_requests=max_requests
        ),
        choices=chosen,
    )


def build(model: Path | None = None, registry: Registry | None = None, **settings: Any) -> Engine:
    """An engine of `configured(model, ...)`."""
    return build_engine(configured(model, registry, **settings), registry)


def overlapping(engine: Engine) -> Engine:
    """A new engine of the same parts that keeps two steps in flight."""
    return Engine(
        core=engine.core,
        executor=engine.executor,
        clock=engine.clock,
        resolution=engine.resolution,
        codec=engine.codec,
        classes=engine.classes,
        dtype=engine.dtype,
        planes=engine.planes,
        max_in_flight=2,
    )


@dataclasses.dataclass(frozen=True)
class Unnamed:
    """Options of a component that has none."""

    name: str = "ours"


def registry_with(seam: str, make: Any, **capabilities: Any) -> Registry:
    """The installed components and one more, `ours`, for a seam (short name).

    `make` gets the BuildContext and returns the instance.
    """

    def built(_config: Any, context: BuildContext) -> Any:
        return make(context)

    return plus(Component(SEAMS[seam], "ours", Unnamed, built, "a test's own", **capabilities))


def plus(component: Component) -> Registry:
    """The installed components and this one."""
    registry = dataclasses.replace(load_registry())
    key = (component.seam, component.name)
    registry.components = {**registry.components, key: component}
    registry.origins = {**registry.origins, key: next(iter(registry.origins.values()))}
    return registry


def asking(
    index: int,
    prompt: Sequence[int] | int,
    max_tokens: int = 4,
    arrival_s: float = 0.0,
    priority: int = 0,
    tenant: str = "",
    **sampling: Any,
) -> Request:
    """A request; a prompt given as a number is that many tokens nobody else starts with."""
    if isinstance(prompt, int):
        prompt = tokens(prompt, salt=index)
    return Request(
        index,
        tuple(prompt),
        SamplingParams(max_tokens=max_tokens, **sampling),
        arrival_s,
        tenant,
        priority,
    )


def tokens(count: int, salt: int = 0) -> tuple[int, ...]:
    """A prompt of `count` ids from 2 to 61; another salt differs from the first token on."""
    return tuple(2 + (salt * 7 + i * i * 5 + i) % 60 for i in range(count))


class Client:
    """Submits, steps and aborts; after every step all accounts are recomputed.

    `tokens`, `texts` and `records` hold what came out by request index, or (index, sample) for
    samples after the first. A token after the final record, a second final record, or a record that
    differs from what was delivered fails at once.
    """

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.tokens: dict[Any, list[int]] = {}
        self.texts: dict[Any, str] = {}
        self.records: dict[Any, RequestRecord] = {}
        self.ids: dict[int, RequestId] = {}
        self.asked: dict[int, Request] = {}
        self.steps = 0
        self.most_tokens = 0

    def submit(self, *requests: Request) -> None:
        for request in requests:
            self.ids[request.index] = self.engine.submit(request)
            self.tokens[request.index], self.texts[request.index] = [], ""
            self.asked[request.index] = request

    def abort(self, index: int) -> None:
        self.engine.abort(self.ids[index])

    def step(self, count: int = 1) -> Counter[int]:
        """Run steps; how many tokens each request got."""
        given: Counter[int] = Counter()
        for _ in range(count):
            before = self.engine.core.ledger.tokens_run
            for output in self.engine.step():
                key = (output.index, output.sample) if output.sample else output.index
                assert output.id == self.ids[output.index]
                assert key not in self.records, "an output after the final record"
                self.tokens.setdefault(key, []).extend(output.new_token_ids)
                self.texts[key] = self.texts.get(key, "") + output.text
                given[output.index] += len(output.new_token_ids)
                record = output.finished
                if record is not None:
                    assert (record.index, record.sample) == (output.index, output.sample)
                    shown = (
                        ([], "") if record.dropped else (record.output_token_ids, record.text or "")
                    )
                    assert shown == (self.tokens[key], self.texts[key])
                    self.records[key] = record
            check_engine(self.engine)
            self.most_tokens = max(self.most_tokens, self.engine.core.ledger.tokens_run - before)
            self.steps += 1
        return given

    def finish(self, most_steps: int = 500) -> dict[int, RequestRecord]:
        """Step until nothing is left to do; all records. The pool must be whole again."""
        end = self.steps + most_steps
        while self.engine.has_work:
            assert self.steps < end, f"still at work after {most_steps} steps"
            self.step()
        for index, request in self.asked.items():
            refused = self.records[index].error is not None
            for sample in range(1, 1 if refused else request.sampling.samples):
                assert (index, sample) in self.records, "a sample got no final record"
        assert set(self.records) == set(self.tokens)
        self.check_idle()
        return self.records

    def check_idle(self) -> None:
        """Every page is free or cached, exactly."""
        for pool in self.engine.core.cache.pools:
            assert pool.held == 0
            assert pool.allocator.free_pages() + pool.cached == pool.num_pages
        self.engine.core.ledger.check()


def serve(engine: Engine, *requests: Request) -> dict[int, RequestRecord]:
    """All records of these requests, submitted at once."""
    client = Client(engine)
    client.submit(*requests)
    return client.finish()


def outputs(records: dict[int, RequestRecord]) -> dict[int, list[int]]:
    """Tokens by request index."""
    return {index: record.output_token_ids for index, record in records.items()}


def solo(model: Path, requests: Iterable[Request], **settings: Any) -> dict[int, list[int]]:
    """Tokens of each request run alone on the reference composition."""
    found = {}
    for request in requests:
        engine = build(model, page_size=16, **REFERENCE, **settings)
        alone = dataclasses.replace(request, arrival_s=0.0)
        found |= outputs(serve(engine, alone))
    return found
