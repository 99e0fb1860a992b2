"""All that a report shows of one study, and what of it is shown where not all of it fits."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from interlock.study.findings import CellSummary, Contrast, Findings
from interlock.study.report.words import is_defined
from interlock.study.spec import Cell, Metric, Observation, Refusal, Study

RunFolder = Callable[[str, int, int], Path]
"""Cell id, repeat and replica -> the folder of that run, whether it exists or not."""


@dataclass(frozen=True)
class Results:
    """One study: what was asked, what was run, what was seen, what it shows."""

    study: Study
    cells: tuple[Cell, ...]
    refusals: tuple[Refusal, ...]
    observations: tuple[Observation, ...]
    findings: Findings
    manifest: Mapping[str, Any] = field(default_factory=dict)
    run_folder: RunFolder | None = None
    """None: only figures are at hand, no run's requests or steps."""

    @property
    def failed(self) -> list[Observation]:
        """Runs that gave nothing."""
        return [one for one in self.observations if one.failure]

    @property
    def compared(self) -> list[Metric]:
        """The metrics that have a figure in at least one cell, in the study's order."""
        return metrics_of(self.study, self.findings)

    def folders(self, cell: str) -> list[Path]:
        """Folders of the complete runs of a cell, by repeat; without second runs of A/A pairs."""
        if self.run_folder is None:
            return []
        done = [one for one in self.observations if one.cell == cell and not one.failure]
        places = sorted({one.repeat for one in done if one.replica == 0})
        folders = [self.run_folder(cell, repeat, 0) for repeat in places]
        return [folder for folder in folders if folder.is_dir()]


def metrics_of(study: Study, findings: Findings) -> list[Metric]:
    """The study's metrics, then what findings hold that the study does not name."""
    known = {metric.key: metric for metric in study.metrics}
    seen = dict.fromkeys(key for cell in findings.cells for key in cell.medians)
    kept = [known.get(key, Metric(key)) for key in (*known, *(k for k in seen if k not in known))]
    defined = {k for c in findings.cells for k, value in c.medians.items() if is_defined(value)}
    return [metric for metric in kept if metric.key in defined]


def idle_everywhere(cells: Sequence[CellSummary]) -> frozenset[str]:
    """Seams that acted in no cell: what all cells have in common tells them not apart."""
    idle = [frozenset(cell.inert) for cell in cells if cell.num_runs]
    return frozenset.intersection(*idle) if len(idle) > 1 else frozenset()


def ranked(cells: Sequence[CellSummary], metric: Metric, baseline: str = "") -> list[CellSummary]:
    """Best first by the metric's median; the baseline before all, cells without a figure last."""

    def place(cell: CellSummary) -> tuple[bool, bool, float]:
        value = cell.medians.get(metric.key)
        if value is None or not is_defined(value):
            return cell.cell != baseline, True, 0.0
        return cell.cell != baseline, False, value if metric.better == "lower" else -value

    return sorted(cells, key=place)


def best_and_worst(cells: Sequence[CellSummary], most: int) -> list[CellSummary]:
    """Of ranked cells the first and the last, more of the first; all where they fit."""
    if len(cells) <= most:
        return list(cells)
    last = most // 3
    return [*cells[: most - last], *cells[len(cells) - last :]] if last else list(cells[:most])


def largest(contrasts: Sequence[Contrast], most: int) -> list[Contrast]:
    """Those that show something before those that do not, larger before smaller; at most `most`."""

    def place(contrast: Contrast) -> tuple[bool, float]:
        value = contrast.estimate.value
        shows = contrast.verdict in ("better", "worse")
        return not shows, -abs(value) if is_defined(value) else 0.0

    return sorted(contrasts, key=place)[:most]


def of_metric(contrasts: Sequence[Contrast], metric: Metric) -> list[Contrast]:
    """The contrasts of one metric, in their order."""
    return [contrast for contrast in contrasts if contrast.metric == metric.key]
