"""`interlock study report DIR`: all that people see of a study, from what its folder holds."""

import argparse
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from interlock.core.errors import RunFolderError
from interlock.study.analyse import analyse
from interlock.study.folder import StudyFolder
from interlock.study.report.table import print_results
from interlock.study.report.write import results_of, write_report
from interlock.study.runner_notes import runner_notes


def report(folder: StudyFolder, console: Console) -> int:
    """Analyse what was observed, print it, and write tables, plots and the page; the exit status.

    Raises RunFolderError where the folder is no study's, or cannot be written.
    """
    study, cells = folder.study(), folder.cells()
    observations = folder.observations()
    if not observations:
        raise RunFolderError(
            f"{folder.path}: no run of this study has ended; "
            f"go on with: interlock study --resume {folder.path}"
        )
    lossy = folder.manifest().get("lossy", ())
    findings = analyse(study, cells, observations, folder.refusals(), lossy)
    notes = (*findings.notes, *runner_notes(folder))
    with _kept(folder):
        folder.write_findings(replace(findings, notes=notes))
    results = results_of(folder)
    print_results(console, results)
    with _kept(folder):
        written = write_report(results, folder.path)
    if written.without:
        _say(console, f"no figures: {written.without}")
    _say(console, f"report: {written.paths[0]}")
    return 0


@contextmanager
def _kept(folder: StudyFolder) -> Iterator[None]:
    """What is written here is made from the runs: say so where it cannot be."""
    try:
        yield
    except RunFolderError as error:
        raise RunFolderError(
            f"{error}; the runs are kept in {folder.path}; once it can be written, make their "
            f"report with: interlock study report {shlex.quote(str(folder.path))}"
        ) from error


def report_main(arguments: list[str]) -> int:
    """`interlock study report DIR`; the exit status."""
    parser = argparse.ArgumentParser("interlock study report", description=__doc__)
    parser.add_argument("folder", type=Path, help="a study's folder")
    return report(StudyFolder(parser.parse_args(arguments).folder), Console())


def _say(console: Console, text: str) -> None:
    console.print(text, markup=False, highlight=False, soft_wrap=True)
