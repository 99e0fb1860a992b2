"""The draft-length seam: how many candidates are proposed, and how many of them are verified."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import NamedTuple

from interlock.core.batch import Draft, StepTimes


class StepLoad(NamedTuple):
    """The step that drafts are verified in: its decoding requests, whether prompts wait to share
    it, how many candidates there is room for, and the temperatures of the drafts' requests."""

    decodes: int
    prompts_wait: bool
    room: int
    temperatures: Sequence[float] = ()


class DraftRound(NamedTuple):
    """One verified draft (as far as it was verified), the accepted candidates that were given out
    (indices, ancestors first), and the temperature of its request."""

    draft: Draft
    path: Sequence[int]
    temperature: float


class StepOutcome(NamedTuple):
    """What a finished step did: decode and verify rows, other tokens (of prompts), the rounds of
    its drafts, the requests that got new candidates and the most that one of them got (of drafters
    on the host: that were asked for, this step's), where the time went, and the seconds since the
    step before it was complete: planning and commit are in them."""

    decodes: int
    prompt_tokens: int
    rounds: Sequence[DraftRound]
    drafting: int
    proposed: int
    times: StepTimes
    seconds: float = 0.0


class DraftLength(ABC):
    """Decides how much is speculated.

    Decisions follow from finished steps and from `Draft.confidence`, which a drafter knows before
    it draws the candidate: whether a candidate is verified must never depend on which token it is,
    nor on a later one. With a verifier that is exact for any draft every decision is sound.
    """

    adapts: bool = True
    """False: it stands for doing without a policy, so that never cutting anything is its job."""

    @abstractmethod
    def propose(self, num_drafts: int, decodes: int) -> int:
        """How many candidates, 0 to num_drafts, each request should get for the next step.

        `decodes` requests are in the step that is being planned. Called once a step; drafts for
        it come to `verify` after this call, or (of drafters that run after the target) before the
        next one.
        """

    def verify(self, drafts: Sequence[Draft], load: StepLoad) -> Sequence[int]:
        """How many leading candidates of each draft are verified now; all, unless overridden.

        What does not fit in `load.room` is cut afterwards, in the order of the drafts: a policy
        whose choice for one draft depends on estimates of another stays within it.
        """
        return [len(draft.tokens) for draft in drafts]

    def observe(self, outcome: StepOutcome) -> None:
        """Learn from a finished step."""
