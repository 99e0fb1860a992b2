"""State machines for every accepted combination of allocator, index and eviction policy."""

import dataclasses
import gc
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

from interlock.conf.find_model import describe_models
from interlock.conf.hydra_edge import compose
from interlock.core.cache_spec import CacheLayout
from interlock.core.capabilities import SharesPages
from interlock.core.component import BuildContext
from interlock.core.kv_cache import KVCache
from interlock.core.registry import Registry
from interlock.core.resolver import Resolution, resolve
from interlock.core.settings import Choice, EngineConfig
from interlock.core.testing.cache_machine import LONGEST, REQUESTS, STEP_TOKENS, CacheMachine
from interlock.core.testing.checked_policy import LAWS, CheckedPolicy

SEAMS = ("cache/allocator", "cache/index", "cache/eviction")
TTL_S = 15.0
"""Seconds, and so operations, of a policy with a time to live: some pages expire, others go."""
PAGE_SIZES, SPARE = (1, 2, 3, 4), (0, 8, 40)
"""Tokens of a page, and how many tokens more than the longest request the pool has room for."""
LAP = 500
"""Operations on one cache; the next one has another page size, lookback and pool."""


@dataclass(frozen=True)
class Combination:
    """One choice with its options for each of the three seams."""

    choices: tuple[Choice, ...]

    def __str__(self) -> str:
        return " ".join(_shown(choice) for choice in self.choices)


@dataclass(frozen=True)
class Lap:
    """What happened to one cache."""

    operations: int
    evicted_pages: int
    hits: int
    seconds: float


def _shown(choice: Choice) -> str:
    default = type(choice.config)()
    fields = dataclasses.asdict(choice.config)
    told = [f"{k}={v}" for k, v in fields.items() if v != getattr(default, k) and k not in _PATHS]
    return choice.name + (f"({', '.join(told)})" if told else "")


_PATHS = ("path", "record")


def variants(config: type) -> Iterator[Any]:
    """The options as they are by default, and with each other value of one choice among few."""
    yield config()
    hints = get_type_hints(config)
    for field in dataclasses.fields(config):
        hint = hints[field.name]
        values = (True, False) if hint is bool else get_args(hint)
        if hint is bool or get_origin(hint) is Literal:
            for value in values:
                if value != field.default:
                    yield config(**{field.name: value})


class CacheWalk:
    """Every combination that the resolver accepts, and caches built as an engine builds them."""

    def __init__(self, registry: Registry) -> None:
        self.registry = registry
        self._base = compose(["executor=fixed", "model=tiny-gqa"], registry)
        self._models = describe_models(self._base, registry)
        self.refused = 0

    def combinations(self, folder: Path) -> list[Combination]:
        """All accepted ones; policies that need a recorded run find one in `folder`."""
        found = [
            Combination(choices) for choices in product(*(self._all(s, folder) for s in SEAMS))
        ]
        accepted = [one for one in found if not self._resolved(one).problems]
        self.refused = len(found) - len(accepted)
        return accepted

    def _all(self, seam: str, folder: Path) -> list[Choice]:
        names = self.registry.names(seam)
        return [
            Choice(name, config) for name in names for config in self._options(seam, name, folder)
        ]

    def _options(self, seam: str, name: str, folder: Path) -> Iterator[Any]:
        for config in variants(self.registry.components[seam, name].config):
            names = {field.name for field in dataclasses.fields(config)}
            if "ttl_s" in names:
                config = dataclasses.replace(config, ttl_s=TTL_S)
            yield (
                dataclasses.replace(config, path=str(folder / "uses"))
                if "path" in names
                else config
            )

    def _resolved(self, one: Combination) -> Resolution:
        return resolve(self._config(one), self.registry, self._models)

    def _config(self, one: Combination) -> EngineConfig:
        choices = dict(zip(SEAMS, one.choices, strict=True))
        return dataclasses.replace(self._base, choices={**self._base.choices, **choices})

    def machine(self, one: Combination, seed: int) -> CacheMachine:
        """A new cache of this combination, with sizes drawn from `seed`."""
        draw = random.Random(seed)
        page_size, lookback = draw.choice(PAGE_SIZES), draw.randint(0, 1)
        num_pages = -(-(LONGEST + draw.choice(SPARE)) // page_size)
        resolution = self._resolved(one).require()
        context = BuildContext(resolution.model, page_size=page_size, num_pages=num_pages)
        allocator, index, policy = (resolution.build(seam, context) for seam in SEAMS)
        eviction = one.choices[2]
        plain = eviction.config == type(eviction.config)() or hasattr(eviction.config, "ttl_s")
        cache = KVCache(
            layout=CacheLayout.of(()), allocators=[allocator], index=index,
            policy=CheckedPolicy(policy, LAWS.get(eviction.name) if plain else None),
            page_size=page_size, max_requests=REQUESTS, max_tokens=LONGEST,
            max_step_tokens=STEP_TOKENS, shares_pages=SharesPages() in resolution.capabilities,
        )  # fmt: skip
        return CacheMachine(
            cache, lookback, seed, ttl_s=getattr(eviction.config, "ttl_s", None),
            by_last_use=eviction.name in ("lru", "ttl"),
            offers_parts=getattr(one.choices[1].config, "partial_pages", False),
        )  # fmt: skip

    def record(self, one: Combination, folder: Path, seed: int) -> None:
        """What `belady` wants to know: an lru run of the same operations with the same index."""
        config = self.registry.components["cache/eviction", "lru"].config(
            record=str(folder / "uses")
        )
        machine = self.machine(Combination((*one.choices[:2], Choice("lru", config))), seed)
        for _ in range(LAP):
            machine.step()
        machine.finish()
        del machine
        gc.collect()  # the policy closes its file as it goes

    def run(self, one: Combination, operations: int, seed: int, check_every: int = 25) -> Lap:
        """So many operations on one cache (at most LAP make sense), to the last page.

        AssertionError or ContractError at the first violation.
        """
        begin_s = time.perf_counter()
        needs_record = getattr(one.choices[2].config, "path", None)
        if needs_record is not None:
            self.record(one, Path(needs_record).parent, seed)
        machine = self.machine(one, seed)
        for number in range(operations):
            machine.step()
            if number % check_every == 0:
                machine.check_integrity()
            if number % LAP == LAP // 2:
                machine.check_memory()
        machine.finish()
        counters = machine.cache.counters
        return Lap(operations, counters.evicted_pages, counters.hits, time.perf_counter() - begin_s)
