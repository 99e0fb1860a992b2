"""What a study shows, worked out from its folder, written into it and printed."""

from dataclasses import replace

from rich.console import Console

from interlock.study.analyse import analyse
from interlock.study.designs import aliases
from interlock.study.findings import Findings
from interlock.study.folder import StudyFolder
from interlock.study.report.table import print_results
from interlock.study.report.write import results_of, write_report


def conclude(folder: StudyFolder, console: Console) -> Findings:
    """Analyse what ran so far, write analysis.json, tables, plots and page, print the tables.

    Raises RunFolderError for a folder that is no study's, or that cannot be written.
    """
    study, cells = folder.study(), folder.cells()
    findings = analyse(study, cells, folder.observations(), folder.refusals())
    more = tuple(_notes(folder))
    findings = replace(findings, notes=(*findings.notes, *more))
    folder.write_findings(findings)
    results = results_of(folder)
    written = write_report(results, folder.path)
    print_results(console, results)
    if written.without:
        console.print(written.without, markup=False, highlight=False)
    return findings


def _notes(folder: StudyFolder) -> list[str]:
    """What the runner knows and the figures do not say."""
    manifest = folder.manifest()
    study, cells = folder.study(), folder.cells()
    found = [f"of this design, {alias}" for alias in aliases(study, cells)]
    timed = len(manifest.get("virtual", ())) < len(cells)
    if timed and (manifest.get("jobs", 1) > 1 or study.launcher):
        found.append(
            "runs went on beside each other: each had cores of its own, but memory bandwidth and "
            "caches were shared, so that times are those of a busy machine"
        )
    if manifest.get("state") != "done":
        found.append("the study is not finished; this is what ran so far")
    return found
