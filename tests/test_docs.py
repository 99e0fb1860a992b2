"""The documents say what is true: tables are current, links lead somewhere, examples run."""

import re
from pathlib import Path

import pytest

from interlock.driver.component_table import built_in_registry, renewed

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
