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


SEAMS: dict[str, Seam] = {
    seam.key: seam
    for seam in (
        Seam(
            "attention",
            "interlock.core.attention:AttentionBackend",
            "how rows are written into pages and attended against them",
        ),
        Seam(
            "cache/allocator",
            "interlock.core.allocator:KVAllocator",
            "which physical pages a request gets",
        ),
        Seam(
            "cache/index",
            "interlock.core.prefix_index:PrefixIndex",
            "how a token prefix maps to computed pages",
        ),
        Seam(
            "cache/eviction",
            "interlock.core.eviction:EvictionPolicy",
            "which cached pages go first when pages run out",
        ),
        Seam(
            "cache/tiers",
            "interlock.core.tier:KVTier",
            "where pages are kept beyond the device",
            optional=True,
        ),
        Seam(
            "cache/tiers/below",
            "interlock.core.tier:KVTier",
            "a second, slower store behind the first",
            optional=True,
        ),
        Seam(
            "cache/load",
            "interlock.core.load_policy:LoadPolicy",
            "whether pages come from a store or are computed again",
        ),
        Seam(
            "scheduler/order",
            "interlock.core.scheduler:OrderPolicy",
            "which request goes first",
        ),
        Seam(
            "scheduler/admission",
            "interlock.core.scheduler:AdmissionPolicy",
            "when a waiting request may start",
        ),
        Seam(
            "scheduler/chunking",
            "interlock.core.scheduler:ChunkingPolicy",
            "how a step's token budget is divided",
        ),
        Seam(
            "scheduler/victim",
            "interlock.core.scheduler:VictimPolicy",
            "who gives pages back when memory is short",
        ),
        Seam(
            "spec",
            "interlock.core.drafter:Drafter",
            "who proposes draft tokens",
            optional=True,
        ),
        Seam(
            "spec/verifier",
            "interlock.core.verifier:Verifier",
            "which draft tokens the target accepts",
        ),
        Seam(
            "spec/length",
            "interlock.core.draft_length:DraftLength",
            "how many draft tokens are proposed and verified",
        ),
        Seam(
            "parallel",
            "interlock.core.parallel:ParallelStrategy",
            "how the model is split over devices",
            optional=True,
        ),
        Seam(
            "structured",
            "interlock.core.structured:StructuredOutput",
            "what keeps an output inside a JSON schema, a regular expression or a grammar",
            optional=True,
        ),
        Seam("executor", "interlock.core.executor:Executor", "what runs a planned step"),
        Seam("workload", "interlock.core.workload:Workload", "which requests arrive, and when"),
    )
}


def children_of(key: str) -> list[str]:
    """Names under this config path that hold the choice of another seam."""
    return [s.path[-1] for s in SEAMS.values() if "/".join(s.path[:-1]) == key]
