"""Optuna over compositions: conditional parameters, refused cells, resuming."""

import pytest

from interlock.core.registry import load_registry
from interlock.study.analyse import analyse
from interlock.study.folder import StudyFolder
from interlock.study.read_study import read_study
from interlock.study.run_study import run_study

pytest.importorskip("optuna")

FILE = """
base: [executor=fixed, workload.num_requests=2]
factors:
  cache: [none, radix]
  spec: {none: [], ngram: [spec=ngram, "spec.num_drafts=1,3"]}
design: {name: search, trials: %d, sampler: random, confirm: 1}
metrics: [mean_ttft_ms, output_throughput]
repeats: 1
"""


def test_a_search_tries_cells_whose_parameters_belong_to_a_level_and_goes_on(tmp_path, worker):
    path = tmp_path / "find.yaml"
    path.write_text(FILE % 5)
    study = read_study(path, load_registry())
    folder = StudyFolder(tmp_path / "out")
    seen = run_study(study, folder, load_registry(), workers=[worker])
    ids = {cell.id for cell in folder.cells()}
    assert "cache=none,spec=none" in ids
    assert {one.cell for one in seen} == ids
    drafting = [cell for cell in folder.cells() if cell.levels["spec"] == "ngram"]
    assert drafting
    assert all(cell.id.partition("num_drafts=")[2] in ("1", "3") for cell in drafting)
    assert all("spec=none" in cell.id for cell in folder.cells() if cell not in drafting)
    again = [one for one in seen if one.repeat == 1]
    assert [one.cell for one in again].count("cache=none,spec=none") == 2
    (best,) = {one.cell for one in again} - {"cache=none,spec=none"}
    found = analyse(study, folder.cells(), seen)
    assert {c.what for c in found.contrasts if c.estimate.num_pairs} == {best}
    assert any("Compared is" in note and best in note for note in found.notes)
    times = {path: path.stat().st_mtime_ns for path in folder.path.glob("cells/*/*/run.json")}
    assert run_study(study, folder, load_registry(), workers=[worker]) == seen
    assert {path: path.stat().st_mtime_ns for path in times} == times
