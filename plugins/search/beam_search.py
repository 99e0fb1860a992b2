"""Beam search without an engine: which continuations go on, which outputs are the best so far.

As transformers defines it (GenerationMixin._beam_search, 5.x). Sums of log-probabilities are the
raw law's, in fp64. Ties go to the earlier beam, then to the lower token; transformers leaves them
to torch.topk.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from interlock.core.request import TokenLogprobs
from interlock.core.sampling_params import SamplingParams


class Beam(NamedTuple):
    """An output so far: its sum of log-probabilities, its tokens, and the law of each if kept."""

    total: float
    tokens: tuple[int, ...] = ()
    laws: tuple[TokenLogprobs, ...] = ()
    parent: int = 0
    """Place of the beam that it continues, in the round before."""


class Finished(NamedTuple):
    """A complete output; `score` is its sum divided by its length to the length penalty."""

    score: float
    beam: Beam


@dataclass(slots=True, eq=False)
class BeamSearch:
    """The beams of one request.

    A round ranks the continuations of all beams jointly. Of the first `width` those that end are
    finished outputs, of which the best `width` are kept; the first `width` that do not end are the
    next beams. The search ends at `most_tokens`, or when `width` outputs are finished and, by
    `early_stopping`: at once (true); when the best beam, at its length now (false) or at the
    length that suits it best (never), is no better than the worst of them.
    """

    params: SamplingParams
    stop_ids: Collection[int]
    most_tokens: int
    beams: tuple[Beam, ...] = (Beam(0.0),)
    """Running ones, best first."""
    finished: list[Finished] = field(default_factory=list)
    """Best first."""

    @property
    def ranked(self) -> int:
        """Continuations that a round ranks: with all stop ids of every beam, enough that go on."""
        return max(2, 1 + len(self.stop_ids)) * self.params.beam_width

    @property
    def looked_at(self) -> int:
        """Most likely tokens of a beam that a round needs to know."""
        params = self.params
        never = {*params.banned_token_ids, *(self.stop_ids if params.min_tokens else ())}
        return self.ranked + len(never)

    def advance(self, laws: Sequence[TokenLogprobs]) -> bool:
        """One round, from the law after each beam (`looked_at` tokens or all); True: the end."""
        width, length = self.params.beam_width, len(self.beams[0].tokens) + 1
        ranked = self._rank(laws, length)
        ends = [length >= self.most_tokens or beam.tokens[-1] in self.stop_ids for beam in ranked]
        norm = length**self.params.length_penalty
        new = [beam for beam, end in zip(ranked[:width], ends, strict=False) if end]
        self.finished += [Finished(beam.total / norm, beam) for beam in new]
        self.finished.sort(key=lambda found: -found.score)
        del self.finished[width:]
        self.beams = tuple([b for b, end in zip(ranked, ends, strict=True) if not end][:width])
        return not self.beams or self._settled(length)

    def _rank(self, laws: Sequence[TokenLogprobs], length: int) -> list[Beam]:
        params = self.params
        banned = {*params.banned_token_ids}
        if length <= params.min_tokens:
            banned.update(self.stop_ids)
        found = sorted(
            (-beam.total - logprob, parent, token)
            for parent, (beam, law) in enumerate(zip(self.beams, laws, strict=True))
            for token, logprob in law.top
            if token not in banned
        )
        return [self._continued(*one, laws[one[1]]) for one in found[: self.ranked]]

    def _continued(self, negated: float, parent: int, token: int, law: TokenLogprobs) -> Beam:
        before, kept = self.beams[parent], self.params.logprobs
        laws = before.laws
        if kept is not None:
            chosen = next(logprob for id, logprob in law.top if id == token)
            laws = (*laws, TokenLogprobs(chosen, law.top[:kept]))
        return Beam(-negated, (*before.tokens, token), laws, parent)

    def _settled(self, length: int) -> bool:
        params = self.params
        if len(self.finished) < params.beam_width:
            return False
        if params.early_stopping is True:
            return True
        if params.early_stopping == "never" and params.length_penalty > 0:
            length = self.most_tokens
        norm: float = length**params.length_penalty
        return self.beams[0].total / norm <= self.finished[-1].score
