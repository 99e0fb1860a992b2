"""`interlock study report DIR`."""

import json
import sys
from dataclasses import asdict

import pytest

from interlock.core.errors import RunFolderError
from interlock.study.folder import StudyFolder
from interlock.study.report.commands import report_main
from tests.full_disk import full_disk


@pytest.fixture
def folder(small, with_runs, tmp_path):
    """A study's folder as a study leaves it, before anything was analysed."""
    made = StudyFolder(tmp_path / "study")
    made.write_manifest(
        {
            "study": asdict(small.study),
            "cells": [asdict(cell) for cell in small.cells],
            "refusals": [asdict(refusal) for refusal in small.refusals],
            "command": "interlock study synthetic.yaml",
            "state": "done",
        }
    )
    made.write_observations(small.observations)
    with_runs(small, made.path / "cells", names=lambda cell: cell)
    return made


def test_everything_is_made_again_from_the_folder(folder, capsys):
    pytest.importorskip("matplotlib")
    assert report_main([str(folder.path)]) == 0
    shown = capsys.readouterr().out
    findings = folder.findings()
    assert {contrast.verdict for contrast in findings.effects} & {"better", "worse"}
    for contrast in findings.effects:
        assert contrast.what in shown
    page = (folder.path / "report.html").read_text(encoding="utf-8")
    assert "interlock study synthetic.yaml" in page
    assert all(f">{contrast.verdict}</span>" in page for contrast in findings.contrasts)
    plots = {path.name for path in (folder.path / "plots").iterdir()}
    assert {"effects.png", "effects.svg", "latency_cdfs.png", "steps.svg"} <= plots
    assert (folder.path / "results.csv").read_text().count("\n") == 1 + len(folder.observations())


def test_without_matplotlib_there_is_a_page_that_says_what_is_missing(folder, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert report_main([str(folder.path)]) == 0
    assert "interlock[plot]" in capsys.readouterr().out.replace("\n", "")
    assert "interlock[plot]" in (folder.path / "report.html").read_text(encoding="utf-8")
    assert not (folder.path / "plots").exists()


def test_a_folder_without_a_study_or_without_a_run_is_refused_with_the_reason(tmp_path, small):
    with pytest.raises(RunFolderError, match=r"study\.json"):
        report_main([str(tmp_path)])
    study = json.loads(json.dumps(asdict(small.study)))
    StudyFolder(tmp_path).write_manifest({"study": study, "cells": [], "refusals": []})
    with pytest.raises(RunFolderError, match="interlock study --resume"):
        report_main([str(tmp_path)])


def test_a_full_disk_names_the_file_and_how_to_make_the_report_of_the_kept_runs(folder, capsys):
    told = f"interlock study report {folder.path}$"
    with full_disk(8 << 10), pytest.raises(RunFolderError, match=told) as raised:
        report_main([str(folder.path)])
    path, reason = str(raised.value).split(": cannot be written: ")
    assert path.startswith(f"{folder.path}/")
    assert reason.startswith(f"File too large; the runs are kept in {folder.path}; ")
    assert not list(folder.path.rglob(".*.tmp"))
