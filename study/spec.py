"""What a study varies and what it keeps fixed: plain values that every part of a study reads."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Level:
    """One choice of a factor, with every override that belongs to it.

    A level carries its own conditional options: `eagle` may set `spec.depth`, which no other level
    has.
    """

    name: str
    overrides: tuple[str, ...] = ()
    lossy: bool = False
    """Its outputs may differ from the baseline's; quality is reported in place of equality. Levels
    whose components declare that they change the output are lossy without saying so."""


@dataclass(frozen=True)
class Factor:
    """One thing that is varied. The first level is the baseline's."""

    name: str
    levels: tuple[Level, ...]

    def level(self, name: str) -> Level:
        """The level of that name; KeyError without one."""
        for level in self.levels:
            if level.name == name:
                return level
        raise KeyError(name)


@dataclass(frozen=True)
class Metric:
    """A figure of a run's summary that is compared: a dotted key of summary.json."""

    key: str
    better: str = "lower"
    """"lower" or "higher"."""
    scale: str = "ratio"
    """"ratio" compares logarithms (times, throughputs), "difference" the values (rates)."""


@dataclass(frozen=True)
class Cell:
    """One composition of a study: a level for each factor."""

    id: str
    """File-system safe and unique in its study, such as `cache=radix,spec=eagle`."""
    levels: Mapping[str, str]
    """Factor name -> level name."""
    overrides: tuple[str, ...]
    """The base's overrides followed by those of the levels."""


@dataclass(frozen=True)
class Refusal:
    """A cell that cannot be run, with the resolver's reasons."""

    cell: Cell
    problems: tuple[str, ...]


@dataclass(frozen=True)
class Study:
    """A study as its file states it, defaults filled in."""

    name: str
    factors: tuple[Factor, ...]
    design: str
    """The name of a design: `one_at_a_time`, `full_factorial`, ..."""
    title: str = ""
    base: tuple[str, ...] = ()
    """Overrides of every cell."""
    design_options: Mapping[str, object] = field(default_factory=dict)
    metrics: tuple[Metric, ...] = ()
    repeats: int = 3
    warmup_runs: int = 1
    """Runs of the baseline that are thrown away before the first block."""
    seed: int = 0
    """Of the order of cells and of the bootstrap; each repeat's workload seed derives from it."""
    confidence: float = 0.95
    launcher: Mapping[str, str] = field(default_factory=dict)
    """`name` of a Hydra launcher (joblib, submitit_local, ray, ...) that runs cells beside each
    other, with its options; empty: this process runs them, `--jobs` at a time."""
    timeout_s: float | None = None
    """Wall-clock seconds after which a run is ended and counts as failed; None: never."""
    also: tuple[Level, ...] = ()
    """Compositions beside the design: each a cell of its own, which has no levels of factors."""

    def factor(self, name: str) -> Factor:
        """The factor of that name; KeyError without one."""
        for factor in self.factors:
            if factor.name == name:
                return factor
        raise KeyError(name)


@dataclass(frozen=True)
class Observation:
    """One run of one cell, or the reason why it gave nothing."""

    cell: str
    """The cell's id."""
    repeat: int
    """Which block: all cells of a block serve the same workload with the same seeds."""
    place: int
    """Position in the order in which the study ran, counted from 0 over all blocks."""
    started_s: float
    """Wall-clock time at its start, seconds after the study's."""
    values: Mapping[str, float | None]
    """Metric key -> figure; None where the run has none (no request ended, for one)."""
    workload_sha256: str = ""
    inert: tuple[str, ...] = ()
    """Seams whose chosen component never acted."""
    chosen: Mapping[str, str] = field(default_factory=dict)
    """Seam -> the component that served it, with its options, in one text. Two runs differ in the
    seams whose texts differ; other settings that matter (`cache.num_pages`) stand here by key."""
    acted: tuple[str, ...] = ()
    """Seams with a counter above zero. What stands for doing without neither acts nor is inert."""
    equal_tokens: float | None = None
    """Share of output tokens equal to the baseline's in the same block, 0 to 1."""
    quality: Mapping[str, float] = field(default_factory=dict)
    """Of lossy cells: perplexity, accuracy of picking continuations, ..."""
    machine: Mapping[str, float] = field(default_factory=dict)
    """What may drift: a fixed calibration product's time before the run, load average, ..."""
    failure: str = ""
    """Why it failed; empty where it ran. A failed observation has no values."""
    replica: int = 0
    """0; 1 for the second run of an A/A pair within a block."""
    exact: bool = False
    """It ran on a virtual clock without noise: the same run again gives the same figures."""


def observed(observations: Sequence[Observation]) -> list[Observation]:
    """Those that ran."""
    return [one for one in observations if not one.failure]
