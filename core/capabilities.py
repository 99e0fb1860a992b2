"""Typed capabilities: what a component offers and needs, compared by value, never by name."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from interlock.core.model import AttentionForm, ModelDescription


@dataclass(frozen=True)
class Capability:
    """Something a component provides. Subclasses are the vocabulary of the resolver."""


@dataclass(frozen=True)
class ServesAttention(Capability):
    """Attention layers of this form are computed."""

    form: AttentionForm


@dataclass(frozen=True)
class ServesWindows(Capability):
    """Sliding-window layers are computed."""


@dataclass(frozen=True)
class ServesSoftCaps(Capability):
    """Attention scores are capped where a layer says so."""


@dataclass(frozen=True)
class ServesSinks(Capability):
    """Sink logits join the softmax of layers that have them."""


@dataclass(frozen=True)
class ServesTrees(Capability):
    """Draft trees (ancestor masks) are computed."""


@dataclass(frozen=True)
class DraftsChains(Capability):
    """Candidates are never siblings: each follows the one before."""


@dataclass(frozen=True)
class SamplesDrafts(Capability):
    """Every candidate is drawn from a law that comes with it."""


@dataclass(frozen=True)
class RatesDrafts(Capability):
    """Candidates come with an estimate of their acceptance, made before they were drawn."""


@dataclass(frozen=True)
class AcceptsAnyDraft(Capability):
    """What is emitted follows the target's law however candidates were chosen."""


@dataclass(frozen=True)
class Lossy(Capability):
    """What is emitted follows another law than the target's."""


@dataclass(frozen=True)
class CapturesGraphs(Capability):
    """On CUDA, attention of a decode or verification step can be captured and replayed."""


@dataclass(frozen=True)
class BatchInvariant(Capability):
    """With numerics=batch_invariant, a row's attention depends on its tokens alone, bit for bit."""


@dataclass(frozen=True)
class StoresFp8(Capability):
    """With cache.dtype=fp8, rows are quantised as they are stored, and read back as stored."""


@dataclass(frozen=True)
class SharesPages(Capability):
    """A page may belong to several requests and outlive its owner."""


@dataclass(frozen=True)
class KeepsPages(Capability):
    """Pages of finished requests are kept for later ones."""


@dataclass(frozen=True)
class KnowsContent(Capability):
    """An index keeps a key of every page (`PrefixIndex.keep_keys`), by which content that was
    evicted is known when it comes back."""


@dataclass(frozen=True)
class MovesPages(Capability):
    """Pages are copied to and from stores beside the steps, with their bytes."""


@dataclass(frozen=True)
class PricesMoves(Capability):
    """Copies of pages to and from stores take a computed time; nothing is copied."""


@dataclass(frozen=True)
class HoldsWholePages(Capability):
    """Every row of the cache is in this process."""


@dataclass(frozen=True)
class RunsModel(Capability):
    """Real tokens, logits and features come out of a real forward pass."""


@dataclass(frozen=True)
class RunsOnRanks(Capability):
    """The executor runs the same plan on every rank of a split model; rank 0 verifies."""


@dataclass(frozen=True)
class SplitsSums(Capability):
    """Sums are formed by several ranks, in an order that is not fixed."""


@dataclass(frozen=True)
class UsesDevices(Capability):
    """There is a device for each rank: on CUDA, cuda:0 to cuda:count - 1."""

    count: int


@dataclass(frozen=True)
class SimulatesDrafts(Capability):
    """Drafts are made up and accepted at a configured rate; no drafter runs."""


@dataclass(frozen=True)
class DrivesVirtualTime(Capability):
    """Steps have a computed duration, on a virtual clock."""


@dataclass(frozen=True)
class CarriesTokens(Capability):
    """Every request of the workload carries token ids."""


@dataclass(frozen=True)
class Feature(Capability):
    """Something a request may ask for: fields of SamplingParams name the one that they need."""

    seam: ClassVar[str] = "executor"
    """Whose choice provides it."""
    lack: ClassVar[str]
    """What is said of a choice that does not."""


@dataclass(frozen=True)
class ReturnsLogprobs(Feature):
    """Log-probabilities can be asked for."""

    lack = "computes no probabilities"


@dataclass(frozen=True)
class RunsBeams(Feature):
    """Outputs of a request may continue each other's: nobody follows them one by one."""

    seam = "spec"
    lack = "drafts along one output; beams need spec=none"


@dataclass(frozen=True)
class EditsLogits(Feature):
    """Penalties, biases and masks change the law that tokens are drawn from."""

    lack = "draws from no logits"


@dataclass(frozen=True)
class FollowsGrammars(Feature):
    """Outputs can be kept inside a grammar."""

    seam = "structured"
    lack = "follows no grammar"


@dataclass(frozen=True)
class MakesText(Feature):
    """Tokens of an output are text of the model's."""

    lack = "makes tokens up; leave it out"


@dataclass(frozen=True)
class TakesBlockIds(Feature):
    """Prompts may be known by the ids of their blocks alone."""

    lack = "needs token ids"


@dataclass(frozen=True)
class Composition:
    """A choice for every seam: what requirements are predicates over."""

    chosen: Mapping[str, tuple[str, Any]]
    """Seam key -> (component name, its config)."""
    capabilities: frozenset[Capability]
    model: ModelDescription | None
    device: str = "cpu"
    dtype: str = "auto"
    settings: Mapping[str, Any] = field(default_factory=dict)

    def has(self, capability: Capability) -> bool:
        """True when some chosen component provides it."""
        return capability in self.capabilities


Requirement = Callable[[Composition], str | None]
"""None when met, else the reason in one sentence that names settings and values."""


def needs(capability: Capability, reason: str) -> Requirement:
    """A requirement that some component provides `capability`."""
    return lambda composition: None if composition.has(capability) else reason


def none_provided(_config: Any, _model: ModelDescription | None) -> Iterable[Capability]:
    """For components without capabilities."""
    return ()


def none_required(_config: Any, _model: ModelDescription | None) -> Iterable[Requirement]:
    """For components without requirements."""
    return ()
