"""How likely each candidate of a draft is to be accepted, learned from finished rounds."""

from collections.abc import Sequence

from interlock.core.draft_length import DraftRound

PRIOR = 0.7
"""Acceptance of a first candidate before there is evidence, and its weight in rounds."""
PRIOR_ROUNDS = 4.0
UNTRIED_FADE = 0.95
"""What each step leaves, besides its own fading, of places beyond its drafts: a few unlucky rounds
would else keep drafts short for as long as evidence counts."""
FADED = 0.5
"""Rounds that count as no evidence."""


class Acceptance:
    """By place in the draft, in so far as there is one: the share of rounds that accepted it.

    A place in a chain is a depth, in a tree the rank in the tree's order, so that the sum over
    the first n places is what verifying n candidates gains. Evidence fades with every step that
    had rounds, sooner at places that it did not try: one that has not been tried for long is
    presumed to continue the ratio of the two before it.
    """

    def __init__(self) -> None:
        self._accepted: list[float] = []
        self._rounds: list[float] = []
        self._drafts: list[float] = []
        self._asked: list[float] = []

    def observe(self, rounds: Sequence[DraftRound], requests: int, asked: int, fade: float) -> None:
        """`rounds` of a step in which each of `requests` was to have `asked` candidates."""
        longest = max([asked, *(len(one.draft.tokens) for one in rounds)])
        for counts in (self._accepted, self._rounds, self._drafts, self._asked):
            counts += [0.0] * (longest - len(counts))
            for place, count in enumerate(counts):
                counts[place] = count * fade * (1 if place < longest else UNTRIED_FADE)
        for place in range(asked):
            self._asked[place] += requests
        for one in rounds:
            for place in range(len(one.draft.tokens)):
                self._rounds[place] += 1
                self._drafts[place] += place < asked
            for place in one.path:
                self._accepted[place] += 1

    @property
    def tried(self) -> int:
        """Places that there is evidence of, not faded yet."""
        return sum(rounds >= FADED for rounds in self._rounds)

    def shares(self, length: int) -> list[float]:
        """Of each of the first `length` places, how many requests have a candidate there."""
        found, last = [], 1.0
        for place in range(length):
            drafts, asked = _at(self._drafts, place), _at(self._asked, place)
            last = min(last, (drafts + PRIOR_ROUNDS * last) / (asked + PRIOR_ROUNDS))
            found.append(last)
        return found

    def chances(self, length: int) -> list[float]:
        """The chance that each of the first `length` candidates is accepted, given that it is
        there."""
        found: list[float] = []
        last, ratio = 1.0, PRIOR
        for place in range(length):
            accepted, rounds = _at(self._accepted, place), _at(self._rounds, place)
            here = (accepted + PRIOR_ROUNDS * last * ratio) / (rounds + PRIOR_ROUNDS)
            ratio = min(1.0, here / last) if last > 0 else 0.0
            last = here
            found.append(here)
        return found


def _at(counts: Sequence[float], place: int) -> float:
    return counts[place] if place < len(counts) else 0.0
