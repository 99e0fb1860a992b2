"""The executor seam: runs a planned step, for real or in virtual time."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from interlock.core.batch import StepPlan, StepResult
from interlock.core.clock import WallClock
from interlock.core.parallel import ALONE, Ranks

if TYPE_CHECKING:
    import torch

    from interlock.core.adapters import AdapterSet
    from interlock.core.attention import AttentionBackend
    from interlock.core.drafter import FeatureDrafter
    from interlock.core.model import Decoder
    from interlock.core.planes import Planes
    from interlock.core.tier import KVTier
    from interlock.core.transfers import Transfers
    from interlock.core.verifier import Verifier


@dataclass(frozen=True)
class ModelParts:
    """What an executor that runs the model is built from."""

    decoder: "Decoder"
    attention: "AttentionBackend"
    planes: "Planes"
    verifier: "Verifier | None"
    """Rank 0's; the others follow its verdicts."""
    drafter: "FeatureDrafter | None"
    draft_attention: "AttentionBackend"
    """The backend for the drafter's own layers; the target's where it serves their form."""
    device: "torch.device"
    adapters: "AdapterSet"
    max_requests: int
    """Rows of a step, at most."""
    max_tokens: int
    """Entries of a request, at most."""
    num_drafts: int = 0
    """Candidates of a row, at most."""
    clock_s: Callable[[], float] = WallClock().now
    """Seconds, for `StepResult.times`: the one clock that an executor reads."""
    wants_draws: bool = False
    """Rows with a draft are to tell what the target draws at each of its candidates."""
    ranks: Ranks = ALONE
    """Those that share the model; all run the same plans."""


class Executor(ABC):
    """Runs one step at a time, in plan order."""

    virtual: bool = False
    """True: `StepResult.duration_s` is set and drives a virtual clock."""
    unsteady: bool = False
    """True: those durations are drawn at random, so that equal runs take unequal times."""

    @abstractmethod
    def execute(self, plan: StepPlan) -> StepResult:
        """Run the step. A request failing alone is in `StepResult.errors`; raising ends the run."""

    def payload_bytes(self, page_size: int) -> int:
        """Of one page of every table, as it is stored in tiers. For executors that move pages."""
        raise NotImplementedError(f"{type(self).__name__} moves no pages")

    def transfers(self, tiers: "Sequence[KVTier]", page_size: int) -> "Transfers":
        """What copies pages to and from these tiers, the fastest first, beside the steps."""
        raise NotImplementedError(f"{type(self).__name__} moves no pages")

    def facts(self) -> dict[str, Any]:
        """What the run's manifest counts of its steps, as plain values."""
        return {}

    def close(self) -> None:
        """Release what the executor holds."""
