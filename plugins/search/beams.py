"""The beams of a request as its samples: who continues whom, over pages that they share.

A beam that has computed its newest token rests, with nothing pending, until the laws after all
others are known; it may lose its pages meanwhile, but the law is kept. Then the round is ranked.
The likeliest continuation of a beam stays with its pages. Every other one takes over a sample whose
own beam ended, waits like a new request, and forks the pages of who shares most of its tokens.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from interlock.core.errors import ContractError
from interlock.core.kv_cache import Holding
from interlock.core.live import Live
from interlock.core.queues import Queues
from interlock.core.request import FinishReason, TokenLogprobs
from interlock.core.search import SampleSearch
from interlock.plugins.search.beam_search import BeamSearch


@dataclass(slots=True, eq=False)
class BeamGroup(SampleSearch):
    """All beams of one submitted request.

    `running` has the samples of `search.beams`, in their order (at first: one); each forked from
    `origins`.
    """

    search: BeamSearch = field(kw_only=True)
    running: list[Live] = field(default_factory=list)
    origins: dict[Live, Live] = field(default_factory=dict)
    laws: dict[Live, TokenLogprobs] = field(default_factory=dict)
    """After the beams that rest."""

    @property
    def looked_at(self) -> int:
        """See SampleSearch."""
        return self.search.looked_at

    def sources(self, live: Live) -> Iterator[tuple[Holding, int]]:
        """See SampleGroup: the beam it continues, if that still has all, else who has most."""
        others = [self.origins[live]] if live in self.origins else []
        others += [other for other in self.lives if other is not live and other not in others]
        best = None
        for other in others:
            if other.holding is not None:
                entries = _shared_entries(live, other)
                if best is None or entries > best[1]:
                    best = other.holding, entries
                if entries == live.sequence.length - 1:
                    break
        if best is not None:
            yield best

    def learn(
        self, live: Live, laws: tuple[TokenLogprobs, ...], queues: Queues, now_s: float
    ) -> list[tuple[Live, FinishReason]]:
        """See SampleSearch. A round is ranked when the law after its last beam is known."""
        looked_at = self.looked_at
        if len(laws) != 1 or len(laws[0].top) < looked_at:
            raise ContractError(f"the executor gave {laws}, not the top {looked_at} after a beam")
        self.running = self.running or [live]
        self.laws[live] = laws[0]
        if len(self.laws) < len(self.running) or not self._advance(queues, now_s):
            return []
        return self._settle()

    def _advance(self, queues: Queues, now_s: float) -> bool:
        """Rank a round and hand its beams to samples; True when the search has ended instead."""
        before, laws = self.running, [self.laws[live] for live in self.running]
        self.laws.clear()
        if self.search.advance(laws):
            return True
        going_on = {before[beam.parent] for beam in self.search.beams}
        spare = [live for live in self.lives if live not in going_on]
        self.running = []
        for beam in self.search.beams:
            parent = before[beam.parent]
            if parent in going_on:
                going_on.remove(parent)
                queues.extend(parent, beam.tokens[-1], now_s)
                self.running.append(parent)
            else:
                live = spare.pop(0)
                self.origins[live] = parent
                queues.restart(live, beam.tokens, now_s)
                self.running.append(live)
        return False

    def _settle(self) -> list[tuple[Live, FinishReason]]:
        """Write the finished outputs into the records of the samples; why each ended."""
        ended = []
        for live, (score, beam) in zip(self.lives, self.search.finished, strict=True):
            record = live.record
            record.output_token_ids, record.logprobs = [*beam.tokens], [*beam.laws]
            record.beam_score = score
            if live.text is not None:
                live.text.push(beam.tokens, live.stop_ids)
            stopped = beam.tokens[-1] in live.stop_ids
            ended.append((live, FinishReason.STOP if stopped else FinishReason.LENGTH))
        return ended


def _shared_entries(live: Live, other: Live) -> int:
    """Leading entries of another beam that are computed, and of the same tokens as this one's."""
    most = min(other.computed, live.sequence.length - 1)
    equal = live.sequence.slice(0, most) == other.sequence.slice(0, most)
    return most if equal.all() else int(equal.argmin())
