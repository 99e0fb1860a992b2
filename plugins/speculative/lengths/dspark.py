"""Verified lengths of all requests together (DSpark, arXiv 2607.05147, section 3.3).

    survival of candidate j of request r = product of its chances up to j
    B = R + verified candidates,  tokens = R + sum of verified survivals,  maximise tokens / T(B)

early_stop (algorithm 1) takes candidates by falling survival and stops at the first that does not
pay. Whether a candidate is verified then follows from larger survivals alone, none of which was
known only after it was drawn: exact with any verifier (appendix A). global takes the best of all
those prefixes; whether a candidate is among them follows from estimates made after it was drawn, so
the verifier must be exact for any draft. Ties go to the earlier place, then the earlier request,
which no token decides. Room is part of the search: if the step cut what does not fit afterwards,
one request's room would follow from another's estimates, made later.

Deviation: where steps lose to drafting nothing, by what they accepted and by the same costs,
nothing is drafted for a while.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from interlock.core.batch import Draft
from interlock.core.component import BuildContext
from interlock.core.draft_length import DraftLength, StepLoad, StepOutcome
from interlock.plugins.speculative.lengths.calibration import Calibration
from interlock.plugins.speculative.lengths.costs import StepCosts
from interlock.plugins.speculative.lengths.options import DSparkConfig
from interlock.plugins.speculative.lengths.survival import survivals

WARM = 4
"""Steps that measure, verifying nothing and everything by turns, before the first search."""
TRIES, TRIED_ROUNDS = 6, 24
"""Steps and rounds of drafts after which the drafter rests, if drafting lost time in them. Few
rounds would say little: what one accepts varies by more than drafting gains."""
LOSS = 0.01
"""Of all time, what such steps may lose: the dearer they are, the longer it rests, and twice as
long after each try in a row that lost, up to MOST_PATIENCE times."""
MOST_PATIENCE = 8


class Node(NamedTuple):
    """A candidate in the order of the search: what it must be worth less than comes before it."""

    doubt: float
    place: int
    request: int


class DSpark(DraftLength):
    """See the module."""

    def __init__(self, config: DSparkConfig) -> None:
        self._config = config
        self._costs = StepCosts()
        self._calibration = Calibration()
        self._steps = 0
        self._resting = 0
        self._searched = False
        self._gains: list[float] = []
        self._rounds = 0
        self._patience = 1

    def propose(self, num_drafts: int, decodes: int) -> int:
        """The whole block: its length is the drafter's. None while it rests, because drafting cost
        more than it gave."""
        return 0 if self._resting else num_drafts

    def verify(self, drafts: Sequence[Draft], load: StepLoad) -> list[int]:
        """See DraftLength. Which steps measure depends on their number alone."""
        if any(len(draft.confidence) != len(draft.tokens) for draft in drafts):
            return [len(draft.tokens) for draft in drafts]
        measuring = self._steps < WARM or self._steps % self._config.probe < 2
        if measuring:
            whole = self._steps % 2
            return [len(draft.tokens) * whole for draft in drafts]
        chances = [self._chances(draft, place, load) for place, draft in enumerate(drafts)]
        stops = self._config.search == "early_stop"
        around, self._searched = self._costs.around(load.decodes), bool(drafts)
        return search(
            chances, load.decodes, lambda rows: self._costs.target.at(rows) + around, load.room,
            stops=stops,
        )  # fmt: skip

    def observe(self, outcome: StepOutcome) -> None:
        """Learn costs and corrections, and whether drafting pays."""
        self._steps += 1
        self._costs.observe(outcome)
        if self._config.calibrate:
            self._calibration.observe(outcome.rounds)
        self._resting = max(0, self._resting - 1)
        if self._searched and not outcome.prompt_tokens and outcome.times.target_s > 0:
            self._gains.append(self._gain(outcome))
            self._rounds += len(outcome.rounds)
        self._searched = False
        enough = TRIES if self._rounds >= TRIED_ROUNDS else TRIED_ROUNDS
        if len(self._gains) >= enough:
            self._judge()

    def _judge(self) -> None:
        """Rest, if the last steps that drafted lost time."""
        tries, gain = len(self._gains), sum(self._gains) / len(self._gains)
        self._gains, self._rounds = [], 0
        if gain >= 1:
            self._patience = 1
            return
        rest = max(self._config.probe, round(tries * (1 / gain - 1) / LOSS))
        self._resting = rest * self._patience
        self._patience = min(2 * self._patience, MOST_PATIENCE)

    def _gain(self, outcome: StepOutcome) -> float:
        """Tokens a second of this step, by what such a step costs, to those without drafting."""
        decodes, target = outcome.decodes, self._costs.target
        tokens = decodes + sum(len(one.path) for one in outcome.rounds)
        rows = decodes + sum(len(one.draft.tokens) for one in outcome.rounds)
        without_s = target.at(decodes) + self._costs.idle(decodes)
        return tokens / decodes * without_s / (target.at(rows) + self._costs.around(decodes))

    def _chances(self, draft: Draft, place: int, load: StepLoad) -> tuple[float, ...]:
        temperature = load.temperatures[place] if load.temperatures else 1.0
        return survivals(draft, self._calibration.chances(draft, temperature))


def search(
    survival: Sequence[Sequence[float]],
    decodes: int,
    seconds: Callable[[int], float],
    room: int,
    *,
    stops: bool,
) -> list[int]:
    """How many leading candidates of each draft to verify.

    `survival[r]` has the chance of each candidate of draft r, `seconds` what a step with so many
    rows takes. Along a draft the least so far counts, so that what is taken is always a prefix.
    """
    order: list[Node] = []
    for request, chances in enumerate(survival):
        least = 1.0
        for place, chance in enumerate(chances):
            least = min(least, chance)
            order.append(Node(-least, place, request))
    taken, best = [0] * len(survival), [0] * len(survival)
    tokens, rows = float(decodes), decodes
    most = _rate(tokens, seconds(rows))
    for node in sorted(order)[: max(0, room)]:
        taken[node.request] = node.place + 1
        tokens, rows = tokens - node.doubt, rows + 1
        rate = _rate(tokens, seconds(rows))
        if rate > most:
            most, best = rate, list(taken)
        elif stops:
            break
    return best


def _rate(tokens: float, seconds: float) -> float:
    return tokens / seconds if seconds > 0 else tokens


def build(config: DSparkConfig, _context: BuildContext) -> DSpark:
    """See Component."""
    return DSpark(config)
