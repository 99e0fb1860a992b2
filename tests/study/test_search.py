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
also: {hash: [cache=block_hash]}
"""


def test_a_search_tries_cells_whose_parameters_belong_to_a_level_and_goes_on(tmp_path, worker):
    path = tmp_path / "find.yaml"
    path.write_text(FILE % 5)
    study = read_study(path, load_registry())
    folder = StudyFolder(tmp_path / "out")
    told = []
    seen = run_study(
        study, folder, load_registry(), workers=[worker], told=lambda *one: told.append(one)
    )
    ids = {cell.id for cell in folder.cells()}
    assert "cache=none,spec=none" in ids
    assert {one.cell for one in seen} == ids
    *tried, beside = sorted(folder.cells(), key=lambda cell: cell.id == "also=hash")
    assert beside.overrides[-1] == "cache=block_hash"
    drafting = [cell for cell in tried if cell.levels["spec"] == "ngram"]
    assert drafting
    assert all(cell.id.partition("num_drafts=")[2] in ("1", "3") for cell in drafting)
    assert all("spec=none" in cell.id for cell in tried if cell not in drafting)
    again = [one for one in seen if one.repeat == 1]
    assert [one.cell for one in again].count("cache=none,spec=none") == 2
    (best,) = {one.cell for one in again} - {"cache=none,spec=none", "also=hash"}
    found = analyse(study, folder.cells(), seen)
    assert {c.what for c in found.contrasts if c.estimate.num_pairs} == {best, "also=hash"}
    for cell in found.cells:  # of the search alone, whose requests all cells served
        (first,) = [o for o in seen if (o.cell, o.repeat, o.replica) == (cell.cell, 0, 0)]
        assert cell.medians == first.values
    assert any("Compared is" in note and best in note for note in found.notes)
    assert told[-1][:2] == (12, 12)  # 2 + 1 + 5 trials, and 4 again
    times = {path: path.stat().st_mtime_ns for path in folder.path.glob("cells/*/*/run.json")}
    assert run_study(study, folder, load_registry(), workers=[worker]) == seen
    assert {path: path.stat().st_mtime_ns for path in times} == times


def test_a_search_that_confirms_nothing_runs_nothing_again_and_compares_nothing(tmp_path, worker):
    path = tmp_path / "find.yaml"
    path.write_text((FILE % 1).replace("confirm: 1", "confirm: 0").replace("also:", "# also:"))
    study = read_study(path, load_registry())
    folder = StudyFolder(tmp_path / "out")
    seen = run_study(study, folder, load_registry(), workers=[worker])
    assert {one.repeat for one in seen} == {0}
    found = analyse(study, folder.cells(), seen)
    assert not any(contrast.estimate.num_pairs for contrast in found.contrasts)
    assert any("Compared is no cell" in note for note in found.notes)
    assert all(cell.medians["mean_ttft_ms"] for cell in found.cells)
