"""From nothing to a row in a study's table, by the commands that the page of plugins shows."""

import re
import shlex
from pathlib import Path

import pytest

from tests.installed import PIP, ROOT, Site

FEWER = {
    "run": ("workload.num_requests=1", "workload.output_tokens=2", "threads=1"),
    "study": ("study.repeats=1", "workload.num_requests=1", "workload.output_tokens=4"),
}
"""What the test adds, to save time."""
PAGE = ROOT / "docs" / "plugins.md"


def journey() -> list[list[str]]:
    """The words of each command under the page's first heading."""
    part = PAGE.read_text("utf-8").partition("## From nothing")[2].partition("\n## ")[0]
    lines = re.findall(r"^    (\S.*)$", part.partition("```yaml")[0], flags=re.MULTILINE)
    return [shlex.split(line, comments=True) for line in lines]


def study_file() -> str:
    return re.findall(r"```yaml\n(.*?)```", PAGE.read_text("utf-8"), flags=re.DOTALL)[0]


@pytest.fixture(scope="module")
def walked(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Command -> what it printed, each typed as it stands there."""
    folder = tmp_path_factory.mktemp("journey")
    (folder / "site").mkdir()
    site = Site(folder / "site")
    site.without_figures()
    (folder / "drafters.yaml").write_text(study_file())
    first, install, *others = journey()
    source = folder / Path(install[-1])
    said = [
        site.interlock(*first[1:], cwd=folder),
        site.python(*PIP, "--target", str(site.folder), str(source), cwd=folder),
        *site.interlock_all(*([*one[1:], *FEWER.get(one[1], ())] for one in others), cwd=folder),
    ]
    return dict(zip((" ".join(words) for words in journey()), said, strict=True))


def of(walked: dict[str, str], command: str) -> str:
    (text,) = [text for line, text in walked.items() if line.startswith(command)]
    return text


def test_it_takes_fewer_than_ten_commands(walked: dict[str, str]) -> None:
    assert len(walked) < 10
    assert [words[0] for words in journey()].count("pip") == 1
    assert journey()[1][0] == "pip"
    assert next(iter(walked)).startswith("interlock new-plugin my-drafter")
    assert list(walked)[-1].startswith("interlock study")


def test_the_new_component_keeps_its_contract(walked: dict[str, str]) -> None:
    assert "keeps its contract: 5 passed, 0 failed" in of(walked, "interlock plugins check")


def test_the_explanation_names_what_it_needs(walked: dict[str, str]) -> None:
    wanted = "spec=my_drafter looks for CarriesTokens: workload=synthetic"
    assert wanted in of(walked, "interlock explain")


def test_the_study_has_a_row_for_it(walked: dict[str, str]) -> None:
    printed = of(walked, "interlock study")
    rows = [line for line in printed.splitlines() if re.search(r"\bmine\b", line)]
    assert any(re.search(r"\d", row) for row in rows), printed
    assert "failed" not in printed
