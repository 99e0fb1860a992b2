"""The documents say what is true: tables are current, links lead somewhere, examples run."""

import re
import shlex
from pathlib import Path

import pytest

from interlock.conf.hydra_edge import compose
from interlock.conf.hydra_sweeps import check_sweep
from interlock.core.errors import ConfigError
from interlock.core.hooks import CONTRACT, OLDEST
from interlock.core.registry import load_registry
from interlock.driver.component_table import built_in_registry, renewed
from interlock.driver.new_plugin.template import seam_called
from interlock.driver.plugin_check import components_called
from interlock.driver.seam_pages import pages
from interlock.study.cli import study_parser
from interlock.study.designs import cells_of
from interlock.study.read_study import read_study

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("models/*.md")])


def test_the_component_table_of_the_readme_is_current():
    readme = (ROOT / "README.md").read_text("utf-8")
    assert renewed(readme, built_in_registry()) == readme, "run `make page`"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_inside_the_repository_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text("utf-8")):
        if "://" not in target:
            assert (page.parent / target).exists(), target


def test_the_python_example_of_the_readme_runs(capsys):
    readme = (ROOT / "README.md").read_text("utf-8")
    (code,) = re.findall(r"```python\n(.*?)```", readme, flags=re.DOTALL)
    exec(compile(code, "README.md", "exec"), {})
    assert len(capsys.readouterr().out) > 20


def test_files_named_in_the_architecture_page_exist():
    page = (ROOT / "docs" / "architecture.md").read_text("utf-8")
    named = re.findall(r"`((?:core|driver|plugins|conf|models|tests|benchmarks)/[\w./]*)`", page)
    assert len(named) > 20
    assert not [name for name in named if not (ROOT / name).exists()]


def test_the_pages_of_the_seams_are_current():
    written = {page.name: page.read_text("utf-8") for page in (ROOT / "docs" / "seams").iterdir()}
    assert written == pages(built_in_registry()), "run `make page`"


def test_the_page_of_plugins_states_the_contract_there_is():
    page = (ROOT / "docs" / "plugins.md").read_text("utf-8")
    assert f"INTERLOCK_CONTRACT = {CONTRACT}" in page
    assert f"The present contract is {CONTRACT}" in page
    assert ("none is deprecated" in page) == (OLDEST == CONTRACT)


COMMAND = re.compile(r"^(?:    |\$ )?((?:python run\.py|interlock) .*)$", flags=re.MULTILINE)
PLACEHOLDER = re.compile(r"[A-Z]{3,}|[/=][A-Z]\b|\.\.\.|<|\$|my[-_]|theirs|mine|lrfu")
"""What a reader puts in (FILE, X.yaml, my-drafter), and what the example package brings."""


def commands():
    """(page, words) of every complete command that a page shows."""
    for page in PAGES:
        for line in COMMAND.findall(page.read_text("utf-8").replace("\\\n", " ")):
            words = shlex.split(line, comments=True)
            if words and not PLACEHOLDER.search(" ".join(words)):
                yield page.relative_to(ROOT).as_posix(), words


SHOWN = list(commands())


def test_there_are_commands_to_check():
    assert len(SHOWN) > 10


@pytest.mark.parametrize(("page", "words"), SHOWN, ids=lambda x: x if isinstance(x, str) else "")
def test_a_command_that_a_page_shows_can_be_typed(page, words):
    """Its choices, options and values exist; what it would run is not run."""
    words = words[2:] if words[0] == "python" else words[1:]
    kind = words[0] if words and words[0] in OTHER_COMMANDS else "run"
    words = words[1:] if words[:1] == [kind] else words
    OTHER_COMMANDS[kind](words)


def check_run(words):
    overrides = [word for word in words if "=" in word and not word.startswith("-")]
    if "-m" in words or "--multirun" in words:
        check_sweep(overrides, load_registry())
    else:
        compose(overrides)


def check_plugins(words):
    if words[:1] == ["check"]:
        assert components_called(words[1], load_registry())
        compose([word.replace("{scratch}", "folder") for word in words[2:] if "=" in word])


def check_new_plugin(words):
    assert seam_called(words[words.index("--seam") + 1])


def check_study(words):
    if words[0] not in ("report", "compare"):
        parsed = study_parser().parse_intermixed_args(words)
        assert parsed.file is None or parsed.file.endswith(".yaml") or "=" in parsed.file


OTHER_COMMANDS = {
    "run": check_run,
    "explain": check_run,
    "chat": check_run,
    "plugins": check_plugins,
    "new-plugin": check_new_plugin,
    "study": check_study,
}


def test_a_command_with_a_mistyped_option_would_be_found():
    with pytest.raises(ConfigError):
        check_run(["cache.num_pagse=3"])


STUDIES = [
    (page.relative_to(ROOT).as_posix(), text)
    for page in PAGES
    for text in re.findall(r"```yaml\n(.*?)```", page.read_text("utf-8"), flags=re.DOTALL)
    if "factors:" in text and "my_drafter" not in text
]
SHIPPED = sorted((ROOT / "conf" / "experiment").glob("*.yaml"))


@pytest.mark.parametrize(("page", "text"), STUDIES, ids=[page for page, _ in STUDIES])
def test_a_study_file_that_a_page_shows_is_one(page, text, tmp_path):
    """Its keys, levels, options and metrics exist, and its baseline composes."""
    (tmp_path / "shown.yaml").write_text(text)
    assert cells_of(read_study(tmp_path / "shown.yaml", load_registry()))[0].levels


def test_pages_show_study_files():
    assert {"docs/studies.md", "docs/tutorial.md"} <= {page for page, _ in STUDIES}


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_a_shipped_study_can_be_read_and_stands_in_the_tutorial_or_the_results(path, monkeypatch):
    monkeypatch.setenv("INTERLOCK_DATA", "somewhere")
    every_level = ("study.design=one_at_a_time",)  # which is sooner composed than all of it
    assert len(cells_of(read_study(path, load_registry(), every_level))) > 3
    shown = [
        (ROOT / "docs" / name).read_text("utf-8") for name in ("tutorial.md", "results/studies.md")
    ]
    assert any(path.name in text for text in shown)


def test_every_refusal_of_the_compatibility_page_has_its_reason():
    page = (ROOT / "docs" / "compatibility.md").read_text("utf-8").partition("## Refused")[2]
    rows = [line.split(" | ") for line in page.splitlines() if line.startswith("| ")][1:]
    assert len(rows) > 50
    for row in rows:
        assert len(row[-1].strip(" |").split()) > 3, row
