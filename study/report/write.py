"""Everything that people see of a study, made (again) from its folder."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from interlock.driver.run_folder import write_file
from interlock.study.findings import Findings
from interlock.study.report.export import MissingExtraError, write_tables
from interlock.study.report.page import page_of
from interlock.study.report.plots import plots_of, write_plots
from interlock.study.report.results import Results
from interlock.study.report.style import Plot
from interlock.study.spec import Cell, Observation, Refusal, Study

PAGE, PLOTS = "report.html", "plots"


class Folder(Protocol):
    """What reports read of a study's folder."""

    path: Path

    def manifest(self) -> dict[str, Any]:
        """study.json."""

    def study(self) -> Study:
        """What was asked."""

    def cells(self) -> tuple[Cell, ...]:
        """The cells that run, the baseline first."""

    def refusals(self) -> tuple[Refusal, ...]:
        """The cells that cannot run."""

    def observations(self) -> list[Observation]:
        """Every run so far."""

    def findings(self) -> Findings:
        """What the analysis said."""

    def run_folder(self, cell: str, repeat: int, replica: int = 0) -> Path:
        """Where a run is."""


@dataclass(frozen=True)
class Written:
    """What was written, and what could not be."""

    paths: Sequence[Path]
    without: str = ""
    """Why there are no figures; empty where there are."""


def results_of(folder: Folder) -> Results:
    """All that the folder says. Raises what reading it raises."""
    return Results(
        study=folder.study(),
        cells=folder.cells(),
        refusals=folder.refusals(),
        observations=tuple(folder.observations()),
        findings=folder.findings(),
        manifest=folder.manifest(),
        run_folder=folder.run_folder,
    )


def write_report(results: Results, directory: Path) -> Written:
    """Write tables, plots and the page. Without matplotlib the page says why it has no figures.

    Raises RunFolderError where the folder cannot be written.
    """
    paths = write_tables(results, directory)
    page, plots, without = _write_page(directory, results)
    if not without:
        paths += write_plots(plots, directory / PLOTS)
    return Written((page, *paths), without)


def _write_page(directory: Path, results: Results) -> tuple[Path, list[Plot], str]:
    plots, without = plots_of(results), ""
    try:
        text = page_of(results, plots)
    except MissingExtraError as error:
        without = str(error)
        text = page_of(results, (), without)
    path = directory / PAGE
    write_file(path, [text])
    return path, plots, without
