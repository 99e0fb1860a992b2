"""The length that gives most tokens a second, by measured acceptance and measured costs.

    goodput(n) = R (1 + sum of the first n chances) / (T(R + rows of n) + draft(R, n) + catch-up)
    goodput(0) = R / (T(R) + what committed rows take that wait meanwhile)

after SmartSpec (arXiv 2406.14066) and vLLM's dynamic speculation, with four additions: places are
counted one by one instead of by one rate; a new length must gain `hysteresis`; one step in `probe`
tries another length, so that acceptance stays known while nothing is drafted, and the cost without
drafts while something is (less often where a try is dear); and costs are measured without drafts
first, then with all that the drafter makes if those are few rows, else with one.
"""

from collections.abc import Sequence
from math import exp

from interlock.core.batch import Draft
from interlock.core.component import BuildContext
from interlock.core.draft_length import DraftLength, StepLoad, StepOutcome
from interlock.plugins.speculative.lengths.acceptance import Acceptance
from interlock.plugins.speculative.lengths.costs import StepCosts
from interlock.plugins.speculative.lengths.options import GoodputConfig

PROBE_FADE = 0.8
"""What a probe leaves of older evidence while nothing is drafted: acceptance then comes in so
rarely that it must count for more, or a drafter that has become good would go unnoticed."""
FEW_ROWS = 16
"""Up to so many rows a first try is of whole drafts: it tells all places at once, and a step of few
rows waits for memory, however many they are."""
RETHINK = 8
"""Steps without drafts after which the choice is made again: they change the costs alone."""
FIRST_ROUNDS, PROBE_ROUNDS = 8, 4
"""Rounds of first tries, and of a probe while nothing is drafted: what one accepts says little, so
that few requests take several steps."""
FIRST_PROBE = 8
"""Steps to the first probe; each next one waits twice as long, up to the option."""
PROBE_LOSS = 0.01
"""Of all time, what probes may lose: one that costs many steps makes the next one wait longer."""


class Goodput(DraftLength):
    """Decisions follow from finished steps alone, so they are sound with any verifier."""

    def __init__(self, config: GoodputConfig) -> None:
        self._config = config
        self._costs = StepCosts()
        self._acceptance = Acceptance()
        self._fade = exp(-1 / config.memory)
        self._length: int | None = None
        self._asked = 0
        self._verified = 0
        self._until_probe = self._pause = min(FIRST_PROBE, config.probe)
        self._probes = 0
        self._probing = False
        self._first_rounds = 0
        self._burst = 0
        self._news = True
        self._chosen_for = (0, 0)

    def propose(self, num_drafts: int, decodes: int) -> int:
        """See DraftLength."""
        if self._burst:  # a probe that goes on
            self._burst -= 1
            self._asked = min(self._asked, num_drafts)
            return self._asked
        if self._news or self._chosen_for != (num_drafts, decodes):
            self._choose(num_drafts, decodes)
            self._news, self._chosen_for = False, (num_drafts, decodes)
        assert self._length is not None
        self._asked, self._probing = min(self._length, num_drafts), self._until_probe <= 0
        if not self._costs.target.knows(decodes):
            self._asked = 0
        elif self._first_rounds < FIRST_ROUNDS or self._costs.target.sizes < 2:
            self._first_rounds += decodes
            whole = decodes * (1 + num_drafts) <= FEW_ROWS
            self._asked = num_drafts if whole else min(1, num_drafts)
        elif self._probing:
            self._asked = self._probe(num_drafts, decodes)
        return self._asked

    def verify(self, drafts: Sequence[Draft], load: StepLoad) -> list[int]:
        """Less than was drafted where the step that came of it holds too many requests.

        Drafting them is paid for; what counts is their rows.
        """
        self._verified = self._asked
        longest = max((len(draft.tokens) for draft in drafts), default=0)
        if self._probing or not longest or not self._costs.target.knows(load.decodes):
            return [len(draft.tokens) for draft in drafts]
        ahead = self._beside(self._length or 0, load.decodes)[-1]
        rates = self._rates(longest, load.decodes, [ahead] * (longest + 1))
        best = max(range(longest + 1), key=rates.__getitem__)
        if rates[best] > (1 + self._config.hysteresis) * rates[longest]:
            longest = best
        return [min(len(draft.tokens), longest) for draft in drafts]

    def observe(self, outcome: StepOutcome) -> None:
        """See DraftLength."""
        self._costs.observe(outcome)
        self._until_probe -= 1
        self._news |= bool(outcome.rounds or self._asked or self._until_probe % RETHINK == 0)
        if outcome.rounds or (self._verified and self._length):
            fade = self._fade if self._length else PROBE_FADE
            self._acceptance.observe(outcome.rounds, outcome.decodes, self._verified, fade)

    def _probe(self, num_drafts: int, decodes: int) -> int:
        """While nothing is drafted the best length of the others; else none and one more, by turns.

        Longer ones would tell more, and cost several steps where rows are dear.
        """
        self._probes += 1
        self._pause = min(2 * self._pause, self._config.probe)
        rates = self._rates(num_drafts, decodes, self._beside(num_drafts, decodes))
        if self._asked:
            probed = 0 if self._probes % 2 else min(self._asked + 1, num_drafts)
        else:
            probed = max(range(1, num_drafts + 1), key=rates.__getitem__, default=0)
            self._burst = -(-PROBE_ROUNDS // decodes) - 1
        lost_steps = rates[self._asked] / rates[probed] - 1 if rates[probed] > 0 else 0.0
        lost_steps *= 1 + self._burst
        self._until_probe = max(self._pause, round(lost_steps / PROBE_LOSS))
        return probed

    def _choose(self, num_drafts: int, decodes: int) -> None:
        """The best length, if it is better enough than the one so far.

        At most twice as long as was tried: a hopeful guess about far places costs many rows.
        """
        rates = self._rates(num_drafts, decodes, self._beside(num_drafts, decodes))
        most = min(num_drafts, max(1, 2 * self._acceptance.tried))
        best = max(range(most + 1), key=rates.__getitem__)
        so_far = None if self._length is None else min(self._length, num_drafts)
        if so_far is None or rates[best] > (1 + self._config.hysteresis) * rates[so_far]:
            self._length = best

    def _beside(self, longest: int, decodes: int) -> list[float]:
        """Seconds beside the target's with 0, 1, ... `longest` candidates."""
        catch_up, drafts = self._costs.catch_up(decodes), self._costs.drafts(decodes, longest)
        return [self._costs.idle(decodes), *(catch_up + seconds for seconds in drafts[1:])]

    def _rates(self, longest: int, decodes: int, beside: Sequence[float]) -> list[float]:
        """Tokens a second with 0, 1, ... `longest` candidates; without costs tokens a step."""
        chances, shares = self._acceptance.chances(longest), self._acceptance.shares(longest)
        tokens, rows, rates = 1.0, 1.0, []
        for length in range(longest + 1):
            if length:
                tokens += shares[length - 1] * chances[length - 1]
                rows += shares[length - 1]
            seconds = self._costs.target.at(decodes * rows) + beside[length]
            rates.append(decodes * tokens / seconds if seconds > 0 else tokens)
        return rates


def build(config: GoodputConfig, _context: BuildContext) -> Goodput:
    """See Component."""
    return Goodput(config)
