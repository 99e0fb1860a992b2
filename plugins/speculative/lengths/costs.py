"""What steps cost, learned as they finish: the target's pass by rows, drafting by length.

Measured points are kept monotone (weighted isotonic regression, by pooling neighbours that fall),
joined by straight lines, and continued beyond the ends by the slope there.
"""

from bisect import bisect_left
from typing import NamedTuple

from interlock.core.draft_length import StepOutcome

WEIGHT = 0.2
"""Of a new measurement once there are five."""
STALE = 64
"""Measurements of other sizes after which a new one counts half: what was known may be old."""
OUTLIER = 3.0
"""A measurement counts as at most so many times what is known: pauses are not the step's."""
EXACT = 16
"""From here on sizes share a point: 16 points for each doubling."""


class Point(NamedTuple):
    """Seconds at a size, from so many measurements (as far as they count), the last of them the
    table's `at`-th."""

    size: float
    seconds: float
    weight: float
    at: int = 0


class CostTable:
    """Seconds by size, from measurements at some sizes."""

    def __init__(self) -> None:
        self._points: dict[int, Point] = {}
        self._hull: list[Point] | None = None
        self._added = 0

    def add(self, size: int, seconds: float) -> None:
        """A measurement. Of the first three the shortest counts: first runs are slow."""
        key = _shared(size)
        known = self._points.get(key, Point(key, seconds, 0))
        value = min(known.seconds, seconds)
        if known.weight >= 3:
            age = (self._added - known.at) / (2 * STALE)
            step = max(WEIGHT, 1 / (known.weight + 1), min(0.5, age))
            value = known.seconds + step * (min(seconds, OUTLIER * known.seconds) - known.seconds)
        self._hull = None
        self._added += 1
        self._points[key] = Point(key, value, min(known.weight + 1, 1 / WEIGHT), self._added)

    @property
    def sizes(self) -> int:
        """At how many sizes there are measurements."""
        return len(self._points)

    def knows(self, size: int) -> bool:
        """True if something close to this size was measured."""
        key = _shared(size)
        return any(abs(known - key) * 8 <= key for known in self._points)

    def at(self, size: float) -> float:
        """Seconds at any size; 0 when nothing was measured."""
        if self._hull is None:
            self._hull = monotone(sorted(self._points.values()))
        return interpolated(self._hull, size)


def _shared(size: int) -> int:
    """The size that stands for this one and its neighbours."""
    if size <= EXACT:
        return size
    grain = 1 << (size.bit_length() - EXACT.bit_length())
    return (size + grain // 2) // grain * grain


def monotone(points: list[Point]) -> list[Point]:
    """The points with the non-decreasing seconds nearest to theirs, by weighted squares."""
    blocks: list[list[Point]] = []
    means: list[tuple[float, float]] = []
    for point in points:
        blocks.append([point])
        means.append((point.seconds, point.weight))
        while len(means) > 1 and means[-2][0] > means[-1][0]:
            (high, a), (low, b) = means[-2:]
            means[-2:] = [((high * a + low * b) / (a + b), a + b)]
            blocks[-2:] = [blocks[-2] + blocks[-1]]
    return [
        point._replace(seconds=mean)
        for block, (mean, _) in zip(blocks, means, strict=True)
        for point in block
    ]


def interpolated(hull: list[Point], size: float) -> float:
    """On the line through the two points around `size`, or through the two at that end; >= 0."""
    if len(hull) < 2:
        return hull[0].seconds if hull else 0.0
    place = min(max(bisect_left(hull, (size,)), 1), len(hull) - 1)
    left, right = hull[place - 1], hull[place]
    slope = (right.seconds - left.seconds) / (right.size - left.size)
    return max(0.0, left.seconds + slope * (size - left.size))


class StepCosts:
    """Costs of decode and verify steps; those that prompts share teach nothing."""

    def __init__(self) -> None:
        self.target = CostTable()
        """By rows: decoding requests and verified candidates."""
        self._catch_up = CostTable()
        self._drafts: dict[int, CostTable] = {}

    def observe(self, outcome: StepOutcome) -> None:
        """Learn from a step whose executor said where its time went."""
        times = outcome.times
        if outcome.prompt_tokens or not outcome.decodes or times.target_s <= 0:
            return
        rows = outcome.decodes + sum(len(one.draft.tokens) for one in outcome.rounds)
        self.target.add(rows, times.target_s)
        self._catch_up.add(outcome.decodes, times.catch_up_s)
        if outcome.drafting and outcome.proposed:
            table = self._drafts.setdefault(outcome.proposed, CostTable())
            table.add(outcome.drafting, times.draft_s)

    def catch_up(self, decodes: int) -> float:
        """Seconds in which the drafter takes in what this many requests committed."""
        return self._catch_up.at(decodes)

    def around(self, decodes: int) -> float:
        """Seconds that this many requests take beside the target, with drafts as long as ever."""
        longest = max(self._drafts, default=0)
        drafting = self._drafts[longest].at(decodes) if longest else 0.0
        return self.catch_up(decodes) + drafting

    def drafts(self, requests: int, longest: int) -> list[float]:
        """Seconds in which this many requests get 0, 1, ... `longest` candidates each.

        Lengths that were not tried lie on the line between those that were, none among them: for a
        drafter with one pass that is too little, and corrected by the first try.
        """
        tried = sorted(self._drafts)
        points = [Point(0, 0.0, 1.0), *(Point(n, self._drafts[n].at(requests), 1) for n in tried)]
        hull = monotone(points)
        return [interpolated(hull, length) for length in range(longest + 1)]
