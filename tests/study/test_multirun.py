"""Plain sweeps, `-m`: the usual folders and one report over them."""

import sys
from pathlib import Path

import pytest
import yaml

from interlock.conf.hydra_sweeps import check_sweep
from interlock.core.errors import ConfigError
from interlock.core.registry import load_registry
from interlock.driver import cli
from interlock.study.folder import StudyFolder
from interlock.study.read_study import read_study


def run_main(monkeypatch: pytest.MonkeyPatch, folder: Path, *arguments: str) -> int:
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "argv", ["interlock", *arguments])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    return int(ended.value.code or 0)


SWEEP = ("-m", "executor=fixed", "workload.num_requests=2", "progress=false", "cache=none,radix")


@pytest.mark.usefixtures("without_figures")
def test_a_sweep_leaves_a_study_with_a_pair_for_each_seed(monkeypatch, tmp_path, capsys):
    assert run_main(monkeypatch, tmp_path, *SWEEP, "seed=1,2") == 0
    (manifest,) = tmp_path.rglob("study.json")
    folder = StudyFolder(manifest.parent)
    seen = folder.observations()
    assert [(one.cell, one.repeat) for one in seen] == [
        ("cache=none", 0), ("cache=none", 1), ("cache=radix", 0), ("cache=radix", 1)
    ]  # fmt: skip
    assert (folder.run_folder("cache=radix", 1) / "summary.json").is_file()
    assert {one.what for one in folder.findings().contrasts} == {"cache=radix"}
    assert {one.estimate.num_pairs for one in folder.findings().contrasts} == {2}
    assert (folder.path / "report.html").is_file()
    assert f"report: {folder.path}" in capsys.readouterr().out


@pytest.mark.usefixtures("without_figures")
def test_a_refused_job_of_a_sweep_is_a_refused_cell_of_its_report(monkeypatch, tmp_path, capsys):
    swept = ("workload.rate=1.0,-1.0", "seed=1,2")
    assert run_main(monkeypatch, tmp_path, *SWEEP, *swept) == 1
    (manifest,) = tmp_path.rglob("study.json")
    refusals = StudyFolder(manifest.parent).refusals()
    assert sorted(one.cell.levels["cache"] for one in refusals) == ["none", "radix"]
    assert "workload.rate=-1.0" in refusals[0].problems[0]


def test_an_option_of_one_choice_is_answered_with_a_study_file(monkeypatch, tmp_path, capsys):
    arguments = ("-m", "executor=fixed", "spec=none,ngram", "spec.num_drafts=3,5")
    assert run_main(monkeypatch, tmp_path, *arguments) == 1
    said = capsys.readouterr().err
    assert "of spec=none,ngram only ngram has the option num_drafts; a study file gives" in said
    start = said.index("  factors:")
    pasted = said[start : said.index("  save it as mine.yaml")]
    assert list(yaml.safe_load(pasted)["factors"]["spec"]) == ["none", "ngram_3", "ngram_5"]
    (tmp_path / "mine.yaml").write_text(pasted)
    study = read_study(tmp_path / "mine.yaml", load_registry())
    assert study.factors[0].level("ngram_5").overrides == ("spec=ngram", "spec.num_drafts=5")


def test_an_option_below_a_swept_preset_is_answered_with_a_study_file(
    monkeypatch, tmp_path, capsys
):
    arguments = ("-m", "executor=fixed", "cache=block_hash,none", "cache.index.hash=fast,sha256")
    assert run_main(monkeypatch, tmp_path, *arguments) == 1
    said = capsys.readouterr().err
    assert "of cache=block_hash,none only block_hash has the option index.hash; a study" in said
    pasted = said[said.index("  factors:") : said.index("  save it as mine.yaml")]
    (tmp_path / "mine.yaml").write_text(pasted)
    study = read_study(tmp_path / "mine.yaml", load_registry())
    level = study.factors[0].level("block_hash_sha256")
    assert level.overrides == ("cache=block_hash", "cache.index.hash=sha256")
    assert study.factors[0].level("none").overrides == ("cache=none",)


def test_an_option_that_no_swept_choice_has_is_answered_with_those_that_have_it():
    swept = ("executor=fixed", "cache=radix,none", "cache.index.hash=fast,sha256")
    with pytest.raises(ConfigError, match=r"none of cache=.* has .*cache/index=block_hash$"):
        check_sweep(swept, load_registry())
    check_sweep([*swept, "cache/index=block_hash"], load_registry())


def test_an_option_that_every_job_of_swept_presets_has_is_accepted():
    both = ("executor=fixed", "cache=radix,none", "cache/index=block_hash")
    check_sweep([*both, "cache.index.hash=fast,sha256", "cache.page_size=8"], load_registry())
