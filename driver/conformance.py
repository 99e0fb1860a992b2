"""The conformance kit for any component: its seam's contract, as what it declares asks for."""

import dataclasses
import tempfile
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from interlock.conf.hydra_edge import compose
from interlock.core.capabilities import (
    Capability,
    CarriesTokens,
    Composition,
    DraftsChains,
    FollowsGrammars,
    Lossy,
    RunsModel,
    SamplesDrafts,
    ServesAttention,
    ServesSinks,
    ServesSoftCaps,
    ServesTrees,
    ServesWindows,
)
from interlock.core.component import BuildContext
from interlock.core.errors import ConfigError, InterlockError
from interlock.core.registry import Chosen, Registry
from interlock.core.seams import SEAMS
from interlock.driver.feature_drafters import on_a_shipped_model

CONTRACTS = {
    "attention": "attention_contract:AttentionContract",
    "cache/allocator": "allocator_contract:AllocatorContract",
    "cache/index": "index_contract:IndexContract",
    "cache/eviction": "eviction_contract:EvictionContract",
    "cache/tiers": "tier_contract:TierContract",
    "cache/tiers/below": "tier_contract:TierContract",
    "cache/load": "load_contract:LoadPolicyContract",
    "cache/events": "cache_watch_contract:CacheWatchContract",
    "cache/snapshot": "cache_watch_contract:CacheWatchContract",
    "scheduler/order": "scheduler_contract:OrderContract",
    "scheduler/admission": "scheduler_contract:AdmissionContract",
    "scheduler/chunking": "scheduler_contract:ChunkingContract",
    "scheduler/victim": "scheduler_contract:VictimContract",
    "spec": "drafter_contract:TokenDrafterContract",
    "spec/verifier": "verifier_contract:VerifierContract",
    "spec/length": "draft_length_contract:DraftLengthContract",
    "parallel": "parallel_contract:ParallelContract",
    "structured": "structured_contract:StructuredContract",
    "executor": "executor_contract:ExecutorContract",
    "workload": "workload_contract:WorkloadContract",
}
"""Seam -> the contract class of its components."""
FEATURE_CONTRACT = "feature_drafter_contract:FeatureDrafterContract"
SCRATCH = "{scratch}"
"""In an option's value: a new empty folder for each instance."""
PAYLOAD_BYTES = 32 << 10
VOCAB_SIZE = 300


def contract_called(path: str) -> type:
    """The class "module:Class" of the kit."""
    module, _, name = path.partition(":")
    found = getattr(import_module(f"interlock.core.testing.{module}"), name)
    assert isinstance(found, type)
    return found


def contract_of(
    registry: Registry,
    seam: str,
    name: str,
    options: Sequence[str],
    declared: Mapping[str, Any],
    scratch: Path,
) -> type:
    """A subclass of the seam's contract that pytest can run, with a `make` for this component.

    `options` are overrides of its options, typed as for `interlock run`; `declared` sets attributes
    of the contract that no capability tells; files go below `scratch`. ConfigError for options that
    are wrong; an InterlockError when the component cannot be built, or when only its own package
    can say how to test it.
    """
    made = _Made(registry, seam, name, options, scratch)
    base, attributes = _FINDERS.get(seam, _plain)(made)
    unknown = sorted(set(declared) - set(dir(base)))
    if unknown:
        raise ConfigError(f"--declare {', '.join(unknown)}: {base.__name__} has no such attribute")
    return type(f"Test{base.__name__}", (base,), {**attributes, **declared})


class _Made:
    """A component with its options, built as often as a test asks."""

    def __init__(
        self, registry: Registry, seam: str, name: str, options: Sequence[str], scratch: Path
    ) -> None:
        self.registry, self.seam, self.name, self._scratch = registry, seam, name, scratch
        self.options = [*_small(registry, seam, name, options), *options]
        self.chosen = self._read()
        self.offers = frozenset(self.chosen.component.provides(self.chosen.config, None))

    def scratch(self) -> Path:
        """A new empty folder."""
        return Path(tempfile.mkdtemp(dir=self._scratch))

    def overrides(self) -> list[str]:
        """Choose it, with its options."""
        options = [option.replace(SCRATCH, str(self.scratch())) for option in self.options]
        return [f"{self.seam}={self.name}", *options]

    def _read(self) -> Chosen:
        choice = compose(self.overrides(), self.registry).choices[self.seam]
        return self.registry.chosen(self.seam, self.name, choice.config)

    def build(self, **context: Any) -> Any:
        """A new instance."""
        from interlock.core.testing.workload_contract import byte_context

        chosen = self._read() if any(SCRATCH in option for option in self.options) else self.chosen
        facts = BuildContext(
            byte_context().model,
            formats=tuple(self.registry.formats.values()),
            families=tuple(self.registry.families.values()),
            payload_bytes=PAYLOAD_BYTES,
            num_pages=200,
            folder=self.scratch(),
        )
        return chosen.build(dataclasses.replace(facts, **context))


Found = tuple[type, dict[str, Any]]


def _plain(made: _Made) -> Found:
    made.build()  # what cannot be built is said once, not by every test
    return contract_called(CONTRACTS[made.seam]), {"make": lambda _self: made.build()}


def _allocator(made: _Made) -> Found:
    attributes = {"make": lambda _self, num_pages: made.build(num_pages=num_pages)}
    return contract_called(CONTRACTS[made.seam]), attributes


def _attention(made: _Made) -> Found:
    import torch

    forms = tuple(c.form for c in made.offers if isinstance(c, ServesAttention))
    flags = {
        "serves_windows": ServesWindows(), "serves_trees": ServesTrees(),
        "serves_softcaps": ServesSoftCaps(), "serves_sinks": ServesSinks(),
    }  # fmt: skip
    attributes = {flag: capability in made.offers for flag, capability in flags.items()}
    device = torch.device("cpu")
    make = {"make": lambda _self: made.build(device=device, dtype=torch.float64)}
    return contract_called(CONTRACTS[made.seam]), {"forms": forms, **attributes, **make}


def _tier(made: _Made) -> Found:
    from interlock.core.tier import PricedTier

    store = made.build()
    if store is None:
        build = {"make": lambda _self: lambda _config, _context: made.build()}
        return contract_called("load_contract:NoStoreContract"), build
    store.close()
    if isinstance(store, PricedTier):
        return contract_called("load_contract:PricedTierContract"), _plain(made)[1]
    return _plain(made)


def _drafter(made: _Made) -> Found:
    from interlock.core.drafter import TokenDrafter

    try:
        drafter = made.build()
    except InterlockError:  # it wants a model, or the head beside one
        drafter = None
    if isinstance(drafter, TokenDrafter):
        return _plain(made)
    attributes = on_a_shipped_model(made.registry, made.chosen.key, made.overrides())
    return contract_called(FEATURE_CONTRACT), attributes


def _verifier(made: _Made) -> Found:
    anything: set[Capability] = {SamplesDrafts(), RunsModel(), CarriesTokens()}
    chosen = {seam: ("under-test", None) for seam in SEAMS}

    def reasons(*more: Capability) -> int:
        composition = Composition(chosen, frozenset({*anything, *more}), None)
        requirements = made.chosen.component.requires(made.chosen.config, None)
        return sum(requirement(composition) is not None for requirement in requirements)

    attributes = {
        "trees": reasons() <= reasons(DraftsChains()), "lossless": Lossy() not in made.offers
    }  # fmt: skip
    base, make = _plain(made)
    return base, {**attributes, **make}


def _structured(made: _Made) -> Found:
    from interlock.core.model_files import ModelFiles
    from interlock.core.testing.tiny import write_byte_tokenizer

    folder = made.scratch()
    write_byte_tokenizer(folder)
    (folder / "config.json").write_text("{}")
    opened = (form.open(folder) for form in made.registry.formats.values())
    files: ModelFiles | None = next((found for found in opened if found is not None), None)
    codec = made.registry.codec(files)
    assert codec is not None, "the built-in plugin reads tokenizer.json"

    def make(_self: object) -> Any:
        from interlock.core.testing.workload_contract import byte_context

        model = dataclasses.replace(byte_context().model, vocab_size=VOCAB_SIZE)
        return made.build(codec=codec, model=model)

    attributes = {
        "make": make, "ids": lambda _self, text: codec.encode(text),
        "refuses_everything": FollowsGrammars() not in made.offers,
    }  # fmt: skip
    make(None)
    return contract_called(CONTRACTS[made.seam]), attributes


def _engine(made: _Made) -> Found:
    return contract_called(CONTRACTS[made.seam]), {"overrides": made.overrides()}


def _watch(made: _Made) -> Found:
    attributes = {
        "overrides": lambda _self, folder: made.overrides(), "registry": lambda _self: made.registry
    }  # fmt: skip
    return contract_called(CONTRACTS[made.seam]), attributes


def _workload(made: _Made) -> Found:
    from interlock.core.testing.workload_contract import byte_context

    base, make = _plain(made)
    entries = [made.build().requests(byte_context(seed)) for seed in (0, 1)]
    seen = {"seeded": entries[0] != entries[1]}  # no capability says so
    return base, {"carries_tokens": CarriesTokens() in made.offers, **seen, **make}


_FINDERS: dict[str, Callable[[_Made], Found]] = {
    "attention": _attention,
    "cache/allocator": _allocator,
    "cache/tiers": _tier,
    "cache/tiers/below": _tier,
    "cache/events": _watch,
    "cache/snapshot": _watch,
    "spec": _drafter,
    "spec/verifier": _verifier,
    "structured": _structured,
    "executor": _engine,
    "workload": _workload,
}


def _small(registry: Registry, seam: str, name: str, options: Sequence[str]) -> list[str]:
    """A store is filled up several times: a mebibyte, unless its capacity was said."""
    key = f"{seam.replace('/', '.')}.capacity_mib"
    component = registry.components[seam, name]
    has = any(field.name == "capacity_mib" for field in dataclasses.fields(component.config))
    stores = seam in ("cache/tiers", "cache/tiers/below")
    return [f"{key}=1"] if stores and has and not any(key in o for o in options) else []
