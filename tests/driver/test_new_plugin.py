"""`interlock new-plugin`: every template is a package that installs, passes the kit and runs."""

import ast
import json
import tomllib
from pathlib import Path

import pytest

from interlock.core.errors import ConfigError
from interlock.core.registry import load_registry
from interlock.core.seams import SEAMS
from interlock.driver.new_plugin.command import main, write_plugin
from interlock.driver.new_plugin.distribution import Names
from interlock.driver.new_plugin.template import SHARED, seam_called, template_of
from tests.installed import Site

ROOT = Path(__file__).parents[2]
APART = ("executor", "parallel", "structured", "cache/tiers/below")
OWN = [seam for seam in SEAMS if seam not in SHARED]


def named(seam):
    return "my-" + seam.replace("/", "-")


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """A folder with a distribution for every seam."""
    out = tmp_path_factory.mktemp("plugins")
    for seam in OWN:
        write_plugin(named(seam), seam, out, load_registry())
    return out


@pytest.fixture(scope="module")
def everywhere(written, tmp_path_factory):
    """An environment in which all of them are installed: one by pip, the rest as pip leaves them.

    (Each build takes pip a second and a half; another is in the tests of the journey.)
    """
    site = Site(tmp_path_factory.mktemp("site"))
    by_pip = [written / named("cache/tiers")]
    site.pip_install(*by_pip)
    for seam in OWN:
        if written / named(seam) not in by_pip:
            site.put(written / named(seam))
    return site


@pytest.fixture(scope="module")
def said(everywhere, tmp_path_factory):
    """What the list, the kit of one distribution and a run say; and the folder of that run.

    The run has those that go together: the executor has its own, and no ranks are started.
    """
    folder = tmp_path_factory.mktemp("run")
    chosen = [f"{seam}={Names(named(seam)).choice}" for seam in OWN if seam not in APART]
    run = ["run", *chosen, "workload.bursts=1", "workload.burst_size=4", "workload.output_tokens=4",
           "model=tiny-gqa", "threads=1", f"hydra.run.dir={folder}"]  # fmt: skip
    commands = ["plugins", "--json"], ["plugins", "check", "my-cache-tiers"], run
    listed, checked, _ = everywhere.interlock_all(*commands, cwd=folder)
    return json.loads(listed), checked, folder


def test_every_seam_has_a_template_whose_files_are_python_and_toml(written):
    for seam in OWN:
        folder = written / named(seam)
        for source in folder.rglob("*.py"):
            text = source.read_text()
            assert "@" not in text.replace("@dataclass", "").replace("@hookimpl", "").replace(
                "@property", ""
            ).replace("@pytest", ""), source
            assert ast.get_docstring(ast.parse(text)), source
        project = tomllib.loads((folder / "pyproject.toml").read_text())
        module = Names(named(seam)).module
        assert project["project"]["entry-points"]["interlock"] == {module: module}


def test_every_template_passes_the_contract_of_its_seam_and_its_own_tests(written, everywhere):
    folders = [str(written / named(seam) / "tests") for seam in OWN]
    printed = everywhere.python("-m", "pytest", "-q", "-p", "no:cacheprovider",
                                "--import-mode=importlib", "-W", "error", *folders,
                                cwd=written)  # fmt: skip
    assert "failed" not in printed
    assert int(printed.split(" passed")[0].split()[-1]) > 8 * len(OWN)


def test_every_template_is_listed_with_its_distribution(said):
    listed = said[0]
    found = {(c["seam"], c["name"]): c for c in listed["components"]}
    for seam in SEAMS:
        name = named(SHARED.get(seam, seam))
        component = found[seam, Names(name).choice]
        assert (component["distribution"], component["version"]) == (name, "0.1.0")
        assert component["contract"] == listed["contract"]
    assert listed["broken"] == []


def test_the_kit_of_the_command_line_agrees(said):
    printed = said[1]
    assert "cache/tiers=my_cache_tiers (my-cache-tiers 0.1.0)" in printed
    assert "passed  any history loses entries at most" in printed
    assert "2 of 2 components keep their contract" in printed


def test_an_engine_runs_with_the_components_of_all_templates_at_once(said):
    folder = said[2]
    manifest = json.loads((folder / "run.json").read_text())
    for seam in OWN:
        if seam not in APART:
            assert manifest["components"][seam]["distribution"] == named(seam)
    assert json.loads((folder / "cache_at_the_end.json").read_text())["pages"] > 0


@pytest.mark.parametrize(
    ("word", "seam"),
    [
        ("drafter", "spec"),
        ("Drafter", "spec"),
        ("eviction", "cache/eviction"),
        ("eviction-policy", "cache/eviction"),
        ("cache/tiers/below", "cache/tiers/below"),
        ("KVTier", "cache/tiers"),
        ("scheduler.victim", "scheduler/victim"),
    ],
)
def test_a_seam_may_be_called_by_its_key_or_its_interface(word, seam):
    assert seam_called(word) == seam


def test_a_seam_that_is_none_is_answered_with_those_there_are():
    with pytest.raises(ConfigError, match=r"--seam evicton: .*did you mean 'cache/eviction'"):
        seam_called("evicton")


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("../escape", "no name of a distribution"),
        ("my drafter", "no name of a distribution"),
        ("-x", "no name of a distribution"),
        ("", "no name of a distribution"),
        ("a/b", "no name of a distribution"),
        ("my--drafter", "no name of a distribution"),
        ("json", "would hide one of Python's own"),
        ("class", "would hide one of Python's own"),
        ("auto", "would hide one of Python's own"),
        ("ngram", "spec=ngram is offered by interlock"),
        ("pytest", "a module 'pytest' is installed already"),
    ],
)
def test_a_name_that_cannot_be_is_refused_and_nothing_is_written(tmp_path, name, reason):
    with pytest.raises(ConfigError, match=reason):
        write_plugin(name, "spec", tmp_path / "out", load_registry())
    assert list(tmp_path.rglob("*")) == []


def test_a_folder_that_is_there_is_left_alone(tmp_path):
    (tmp_path / "my-drafter").mkdir()
    with pytest.raises(ConfigError, match="is there already; nothing is overwritten"):
        main(["my-drafter", "--seam", "drafter", "--out", str(tmp_path)], load_registry())
    assert list((tmp_path / "my-drafter").iterdir()) == []


def test_it_says_what_to_type_next(tmp_path, capsys):
    main(["my-drafter", "--seam", "drafter", "--out", str(tmp_path)], load_registry())
    printed = capsys.readouterr().out
    assert f"pip install -e '{tmp_path / 'my-drafter'}[test]'" in printed
    assert "interlock plugins check spec/my_drafter" in printed


def test_templates_state_the_contract_there_is_and_every_seam_has_one():
    for seam in SEAMS:
        template = template_of(seam)
        assert seam in template.seams
        assert template.part("summary")


def test_seams_and_templates_are_the_same():
    files = {f.stem for f in (ROOT / "driver" / "new_plugin" / "templates").iterdir()}
    assert files == {seam.replace("/", "_") for seam in OWN}


def test_the_module_imports_nothing_heavy(everywhere, tmp_path):
    """A plugin's module is imported at every start, chosen or not."""
    modules = [Names(named(seam)).module for seam in OWN]
    code = f"import sys, {', '.join(modules)}; print('torch' in sys.modules)"
    assert everywhere.python("-c", code, cwd=tmp_path).strip() == "False"
