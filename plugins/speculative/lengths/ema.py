"""Steps up and down among a few lengths as the average of accepted candidates says.

SGLang's adaptive speculative steps: ema <- (1 - weight) ema + weight * (accepted a request), looked
at every few steps; one step down when ema <= shorter - 0.5 + down, one up when ema > length - 0.5 +
up; which lengths there are depends on how many requests decode. Two deviations: the shortest length
goes to 0 when next to nothing is accepted (with the rule alone it never would), and at 0, where no
evidence comes in, the next length is tried again after `probe` steps.
"""

from bisect import bisect_right

from interlock.core.component import BuildContext
from interlock.core.draft_length import DraftLength, StepOutcome
from interlock.plugins.speculative.lengths.options import EmaConfig


class Ema(DraftLength):
    """See the module; `propose` follows from finished steps alone."""

    def __init__(self, config: EmaConfig) -> None:
        self._config = config
        self._requests = [requests for requests, _ in config.tiers]
        self._length = max(config.tiers[0][1])
        self._average = self._length - 1.0
        self._seen = 0
        self._since = 0
        self._idle = 0

    def propose(self, num_drafts: int, decodes: int) -> int:
        """The length, or the nearest shorter one that this many requests may have."""
        return min(num_drafts, _at_most(self._length, self._lengths(decodes)))

    def observe(self, outcome: StepOutcome) -> None:
        """Average what was accepted; decide every few steps that verified drafts."""
        config, lengths = self._config, self._lengths(outcome.decodes)
        if not outcome.rounds:
            self._wait(lengths)
            return
        self._idle = 0
        accepted = sum(len(one.path) for one in outcome.rounds) / len(outcome.rounds)
        self._average += config.weight * (accepted - self._average)
        self._seen += 1
        self._since += 1
        if self._seen > config.warmup and self._since >= config.every:
            self._since = 0
            self._decide(lengths)

    def _decide(self, lengths: tuple[int, ...]) -> None:
        config, length = self._config, _at_most(self._length, lengths)
        place = lengths.index(length)
        if place + 1 < len(lengths) and self._average > length - 0.5 + config.up:
            length = lengths[place + 1]
        elif place > 0:
            shorter = lengths[place - 1]
            least = config.off if shorter == 0 else shorter - 0.5 + config.down
            length = shorter if self._average <= least else length
        self._length = length

    def _wait(self, lengths: tuple[int, ...]) -> None:
        """At length 0, try the next one after a while: from no opinion, for one decision."""
        if _at_most(self._length, lengths) > 0 or len(lengths) == 1:
            return
        self._idle += 1
        if self._idle >= self._config.probe:
            self._idle, self._since = 0, 0
            self._length = lengths[1]
            self._average = self._config.off

    def _lengths(self, decodes: int) -> tuple[int, ...]:
        place = max(0, bisect_right(self._requests, decodes) - 1)
        return self._config.tiers[place][1]


def _at_most(length: int, lengths: tuple[int, ...]) -> int:
    return max((one for one in lengths if one <= length), default=lengths[0])


def build(config: EmaConfig, _context: BuildContext) -> Ema:
    """See Component."""
    return Ema(config)
