"""Typed capabilities: what a component offers and needs, compared by value, never by name."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from interlock.core.model import AttentionForm, ModelDescription


@dataclass(frozen=True)
class Capability:
    """Something a component provides. Subclasses are the vocabulary of the resolver.

    Two of a kind are equal if their fields are; a kind without fields inherits that.
    """


@dataclass(frozen=True)
class ServesAttention(Capability):
    """Attention layers of this form are computed."""

    form: AttentionForm


class ServesWindows(Capability):
    """Sliding-window layers are computed."""


class ServesSoftCaps(Capability):
    """Attention scores are capped where a layer says so."""


class ServesSinks(Capability):
    """Sink logits join the softmax of layers that have them."""


class ServesTrees(Capability):
    """Draft trees (ancestor masks) are computed."""


class DraftsChains(Capability):
    """Candidates are never siblings: each follows the one before."""


class SamplesDrafts(Capability):
    """Every candidate is drawn from a law that comes with it."""


class RatesDrafts(Capability):
    """Candidates come with an estimate of their acceptance, made before they were drawn."""


class AcceptsAnyDraft(Capability):
    """What is emitted follows the target's law however candidates were chosen."""


class Lossy(Capability):
    """What is emitted follows another law than the target's."""


class CapturesGraphs(Capability):
    """On CUDA, attention of a decode or verification step can be captured and replayed."""


class BatchInvariant(Capability):
    """With numerics=batch_invariant, a row's attention depends on its tokens alone, bit for bit."""


class StoresFp8(Capability):
    """With cache.dtype=fp8, rows are quantised as they are stored, and read back as stored."""


class SharesPages(Capability):
    """A page may belong to several requests and outlive its owner."""


class KeepsPages(Capability):
    """Pages of finished requests are kept for later ones."""


class KnowsContent(Capability):
    """An index keeps a key of every page (`PrefixIndex.keep_keys`), by which content that was
    evicted is known when it comes back."""


class MovesPages(Capability):
    """Pages are copied to and from stores beside the steps, with their bytes."""


class PricesMoves(Capability):
    """Copies of pages to and from stores take a computed time; nothing is copied."""


class HoldsWholePages(Capability):
    """Every row of the cache is in this process."""


class RunsModel(Capability):
    """Real tokens, logits and features come out of a real forward pass."""


class RunsOnRanks(Capability):
    """The executor runs the same plan on every rank of a split model; rank 0 verifies."""


class SplitsSums(Capability):
    """Sums are formed by several ranks, in an order that is not fixed."""


@dataclass(frozen=True)
class UsesDevices(Capability):
    """There is a device for each rank: on CUDA, cuda:0 to cuda:count - 1."""

    count: int


class SimulatesDrafts(Capability):
    """Drafts are made up and accepted at a configured rate; no drafter runs."""


class DrivesVirtualTime(Capability):
    """Steps have a computed duration, on a virtual clock."""


class CarriesTokens(Capability):
    """Every request of the workload carries token ids."""


class Feature(Capability):
    """Something a request may ask for: fields of SamplingParams name the one that they need."""

    seam: ClassVar[str] = "executor"
    """Whose choice provides it."""
    lack: ClassVar[str]
    """What is said of a choice that does not."""


class ReturnsLogprobs(Feature):
    """Log-probabilities can be asked for."""

    lack = "computes no probabilities"


class RunsBeams(Feature):
    """Outputs of a request may continue each other's: nobody follows them one by one."""

    seam = "spec"
    lack = "drafts along one output; beams need spec=none"


class EditsLogits(Feature):
    """Penalties, biases and masks change the law that tokens are drawn from."""

    lack = "draws from no logits"


class FollowsGrammars(Feature):
    """Outputs can be kept inside a grammar."""

    seam = "structured"
    lack = "follows no grammar"


class MakesText(Feature):
    """Tokens of an output are text of the model's."""

    lack = "makes tokens up; leave it out"


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
