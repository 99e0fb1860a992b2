"""What the analysis of a study says: plain values, written as analysis.json, read by reports."""

import math
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Estimate:
    """A paired effect with its bootstrap interval.

    Of a metric on the ratio scale, a relative change: -0.1 is ten per cent less; on the difference
    scale, the difference itself.
    """

    value: float
    low: float
    high: float
    p: float
    """Two-sided, not corrected."""
    p_adjusted: float
    """Corrected over all comparisons of the study (interactions: over all of these)."""
    num_pairs: int


@dataclass(frozen=True)
class Contrast:
    """One cell against the baseline, or one level against its factor's first level."""

    metric: str
    what: str
    """The cell's id, or `factor=level`."""
    against: str
    estimate: Estimate
    verdict: str
    """"better", "worse", "no difference shown" (the interval has zero, or the effect is inside the
    noise floor), "inert" (the component never acted) or "too few pairs"."""
    reason: str = ""
    """One sentence that says why the verdict is what it is."""


@dataclass(frozen=True)
class Interaction:
    """How much the effect of one factor's level depends on another's."""

    metric: str
    first: str
    """`factor=level`."""
    second: str
    estimate: Estimate


@dataclass(frozen=True)
class NoiseFloor:
    """What two runs of one composition differ by, from A/A pairs and residuals of blocks."""

    metric: str
    value: float
    """The half-width within which 95 % of differences between equal compositions lie; NaN where
    too few pairs say anything of it."""
    num_pairs: int
    source: str
    """In words: how it was measured."""

    @property
    def is_known(self) -> bool:
        """False where there were too few pairs."""
        return math.isfinite(self.value)


@dataclass(frozen=True)
class Drift:
    """Whether the machine changed while the study ran."""

    metric: str
    per_run: float
    """Slope over the order of runs, relative change a run."""
    p: float


@dataclass(frozen=True)
class CellSummary:
    """One cell's own figures."""

    cell: str
    num_runs: int
    num_failed: int
    medians: dict[str, float | None]
    lows: dict[str, float | None]
    """The least of its runs; no interval, which a few runs cannot give without a model."""
    highs: dict[str, float | None]
    """The most of them."""
    inert: tuple[str, ...] = ()
    equal_tokens: float | None = None
    quality: dict[str, float] = field(default_factory=dict)
    pareto: bool = False
    """No other cell is at least as good in the first two metrics and better in one."""

    @property
    def shows_equal_tokens(self) -> bool:
        """True where not all are equal, and for a lossy cell whatever they are."""
        return self.equal_tokens is not None and (self.equal_tokens < 1 or bool(self.quality))


@dataclass(frozen=True)
class Findings:
    """All of it."""

    baseline: str
    confidence: float
    cells: tuple[CellSummary, ...]
    contrasts: tuple[Contrast, ...]
    """Cells against the baseline."""
    effects: tuple[Contrast, ...]
    """Levels against the first level of their factor, averaged over the other factors."""
    interactions: tuple[Interaction, ...]
    noise: tuple[NoiseFloor, ...]
    drift: tuple[Drift, ...]
    notes: tuple[str, ...] = ()
    """What a reader must know: unequal tokens, different workloads, failed or refused cells."""
