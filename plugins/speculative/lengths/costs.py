"""What steps cost, learned as they finish: the target's pass by rows, drafting by length.

Measured points are kept monotone (weighted isotonic regression, by pooling neighbours that fall),
joined by straight lines, and continued beyond the ends by the slope there.
"""

from bisect import bisect_left
from collections import deque
from typing import NamedTuple

from interlock.core.draft_length import StepOutcome

KEPT, FEW = 9, 4
"""Measurements of a size that count. The median of them does; of fewer than four the shortest,
because first runs are slow."""
STALE = 256
"""Measurements of any size after which one no longer counts."""
IDLE_WEIGHT = 0.05
"""Of a new step without drafting in the average over them: some take much in, most nothing."""
EXACT = 16
"""From here on sizes share a point: 16 points for each doubling."""


class Point(NamedTuple):
    """Seconds at a size, from so many measurements (as far as they count)."""

    size: float
    seconds: float
    weight: float


class CostTable:
    """Seconds by size, from measurements at some sizes."""

    def __init__(self) -> None:
        self._measured: dict[int, deque[tuple[int, float]]] = {}
        self._points: dict[int, Point] = {}
        self._hull: list[Point] | None = None
        self._added = 0

    def add(self, size: int, seconds: float) -> None:
        """A measurement; pauses of the machine, which only few have, do not move the median."""
        key = _shared(size)
        measured = self._measured.setdefault(key, deque(maxlen=KEPT))
        while measured and self._added - measured[0][0] > STALE:
            measured.popleft()
        measured.append((self._added, seconds))
        self._added += 1
        found = sorted(value for _, value in measured)
        middle = found[0] if len(found) < FEW else found[(len(found) - 1) // 2]
        self._points[key] = Point(key, middle, len(found))
        self._hull = None

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
        self._resumed = CostTable()
        self._drafting = False
        self._idle: dict[int, Point] = {}
        self._drafts: dict[int, CostTable] = {}
        self._host = CostTable(), CostTable()
        """Planning and commit of steps without drafts, and of those that verify and draft."""

    def observe(self, outcome: StepOutcome) -> None:
        """Learn from a step whose executor said where its time went."""
        times = outcome.times
        if outcome.prompt_tokens or not outcome.decodes or times.target_s <= 0:
            return
        rows = outcome.decodes + sum(len(one.draft.tokens) for one in outcome.rounds)
        self.target.add(rows, times.target_s)
        if outcome.drafting and outcome.proposed:
            # the first step of several also takes in what waited
            known = self._catch_up if self._drafting else self._resumed
            known.add(outcome.decodes, times.catch_up_s)
            table = self._drafts.setdefault(outcome.proposed, CostTable())
            table.add(outcome.drafting, times.draft_s)
        elif not outcome.rounds:
            key = _shared(outcome.decodes)
            mean = self._idle.get(key, Point(key, 0.0, 0))
            step = max(IDLE_WEIGHT, 1 / (mean.weight + 1)) * (times.catch_up_s - mean.seconds)
            self._idle[key] = Point(key, mean.seconds + step, mean.weight + 1)
        self._drafting = bool(outcome.drafting and outcome.proposed)
        if outcome.seconds > 0 and self._drafting == bool(outcome.rounds):
            host_s = max(0.0, outcome.seconds - sum(times))
            self._host[self._drafting].add(outcome.decodes, host_s)

    def catch_up(self, decodes: int) -> float:
        """Seconds in which the drafter takes in what this many requests committed, to draft, and
        the host plans and commits."""
        table = self._catch_up if self._catch_up.sizes else self._resumed
        host = self._host[True] if self._host[True].sizes else self._host[False]
        return table.at(decodes) + host.at(decodes)

    def idle(self, decodes: int) -> float:
        """The same while nothing is drafted, on average: committed rows wait, and then come
        together."""
        key = _shared(decodes)
        near = min(self._idle, key=lambda known: abs(known - key), default=None)
        waited_s = 0.0 if near is None else self._idle[near].seconds * decodes / max(1, near)
        return waited_s + self._host[False].at(decodes)

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
