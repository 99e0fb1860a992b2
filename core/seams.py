"""The seam table: every place where a component is chosen, and the interface it must implement."""

import importlib
from dataclasses import dataclass


@dataclass(frozen=True)
class Seam:
    """One choice of a composition.

    `key` is the config group; its options live under the same path with dots, so a seam whose key
    starts with another seam's key nests inside the options of that choice (`spec/verifier` is
    `spec.verifier`). `interface` is "module:class" of what the chosen component's build returns,
    or None where `optional`.
    """

    key: str
    interface: str
    summary: str
    optional: bool = False

    @property
    def path(self) -> tuple[str, ...]:
        """Where the chosen component's options are in the configuration."""
        return tuple(self.key.split("/"))

    @property
    def dotted(self) -> str:
        """The same as a config key."""
        return ".".join(self.path)

    def interface_class(self) -> type:
        """The interface, imported now."""
        module, _, name = self.interface.partition(":")
        interface = getattr(importlib.import_module(module), name)
        assert isinstance(interface, type)
        return interface


def _seam(key: str, interface: str, summary: str, optional: bool = False) -> Seam:
    return Seam(key, f"interlock.core.{interface}", summary, optional)


SEAMS: dict[str, Seam] = {
    seam.key: seam
    for seam in (
        _seam("attention", "attention:AttentionBackend",
              "how rows are written into pages and attended against them"),
        _seam("cache/allocator", "allocator:KVAllocator", "which physical pages a request gets"),
        _seam("cache/index", "prefix_index:PrefixIndex",
              "how a token prefix maps to computed pages"),
        _seam("cache/eviction", "eviction:EvictionPolicy",
              "which cached pages go first when pages run out"),
        _seam("cache/tiers", "tier:KVTier", "where pages are kept beyond the device", True),
        _seam("cache/tiers/below", "tier:KVTier", "a second, slower store behind the first", True),
        _seam("cache/load", "load_policy:LoadPolicy",
              "whether pages come from a store or are computed again"),
        _seam("cache/events", "cache_watch:CacheWatch",
              "where changes of the cache are told", True),
        _seam("cache/snapshot", "cache_watch:CacheWatch",
              "what the cache begins with, and leaves", True),
        _seam("scheduler/order", "scheduler:OrderPolicy", "which request goes first"),
        _seam("scheduler/admission", "scheduler:AdmissionPolicy",
              "when a waiting request may start"),
        _seam("scheduler/chunking", "scheduler:ChunkingPolicy",
              "how a step's token budget is divided"),
        _seam("scheduler/victim", "scheduler:VictimPolicy",
              "who gives pages back when memory is short"),
        _seam("spec", "drafter:Drafter", "who proposes draft tokens", True),
        _seam("spec/verifier", "verifier:Verifier", "which draft tokens the target accepts"),
        _seam("spec/length", "draft_length:DraftLength",
              "how many draft tokens are proposed and verified"),
        _seam("parallel", "parallel:ParallelStrategy", "how the model is split over devices", True),
        _seam("structured", "structured:StructuredOutput",
              "what keeps an output inside a JSON schema, a regular expression or a grammar", True),
        _seam("executor", "executor:Executor", "what runs a planned step"),
        _seam("workload", "workload:Workload", "which requests arrive, and when"),
    )
}  # fmt: skip


def children_of(key: str) -> list[str]:
    """Names under this config path that hold the choice of another seam."""
    return [s.path[-1] for s in SEAMS.values() if "/".join(s.path[:-1]) == key]
