"""`interlock study compare FIRST SECOND`."""

import io
import json
import re
from dataclasses import asdict, replace
from html import escape

import pytest
from rich.cells import cell_len
from rich.console import Console

from interlock.core.errors import ConfigError, RunFolderError
from interlock.study.compare import Side, compare
from interlock.study.folder import StudyFolder
from interlock.study.report.comparison import compare_main, comparison_page, print_comparison


def side(results, factor=1.0, git="a"):
    seen = tuple(
        replace(one, values={key: value * factor for key, value in one.values.items()})
        for one in results.observations
    )
    return Side(results.study, results.cells, seen, {"git": {"commit": git}})


def shown(found, study, width=120):
    console = Console(width=width, file=io.StringIO(), force_terminal=False)
    print_comparison(console, found, study, ("one", "two"))
    return console.file.getvalue()


def test_changes_notes_and_what_differs_around_are_shown_in_the_words_of_the_comparison(small):
    found = compare(side(small), side(small, 1.1, "b"))
    text, page = shown(found, small.study, 200), comparison_page(found, small.study, ("one", "two"))
    for note in (*found.notes, *found.differences):
        assert note in " ".join(text.split())
        assert escape(note) in page
    for one in found.changes:
        assert one.cell in text
        assert one.reason in text
        assert one.reason in page
    assert text.count("+10.0 %  <") == len(small.cells) * len(small.study.metrics)


def test_cells_that_one_study_has_alone_are_listed(small):
    first, second = side(small), side(small)
    found = compare(first, replace(second, cells=second.cells[1:]))
    assert "1 cell only in one" in shown(found, small.study)
    assert small.cells[0].id in shown(found, small.study)
    nothing = compare(first, replace(second, cells=()))
    assert "No cell of the first" in shown(nothing, small.study)
    assert "No cell of the first" in comparison_page(nothing, small.study, ("one", "two"))


@pytest.mark.parametrize("name", ["hostile", "unsuccessful", "many", "refused"])
def test_every_pair_of_studies_is_shown(name, request):
    results = request.getfixturevalue(name)
    found = compare(side(results), side(results))
    lines = shown(found, results.study, 60).splitlines()
    assert all(cell_len(line) <= 60 for line in lines)
    page = comparison_page(found, results.study, ("<script>", "two"))
    assert page.count("<script") == 1
    assert not re.search(r"https?://", page.replace("http-equiv", ""))


def test_the_command_reads_two_folders_and_writes_the_page_into_the_second(small, tmp_path, capsys):
    for name, factor in (("first", 1.0), ("second", 0.9)):
        folder = StudyFolder(tmp_path / name)
        about = {"study": asdict(small.study), "cells": [asdict(c) for c in small.cells]}
        folder.write_manifest(json.loads(json.dumps(about)))
        folder.write_observations(side(small, factor).observations)
    assert compare_main([str(tmp_path / "first"), str(tmp_path / "second")]) == 0
    assert "-10.0 %" in capsys.readouterr().out
    assert "-10.0 %" in (tmp_path / "second" / "compared_with_first.html").read_text("utf-8")
    with pytest.raises(RunFolderError):
        compare_main([str(tmp_path / "first"), str(tmp_path / "nothing")])


def test_a_study_is_not_compared_with_itself(tmp_path):
    (tmp_path / "again").symlink_to(tmp_path)
    with pytest.raises(ConfigError, match="again are one study"):
        compare_main([str(tmp_path), str(tmp_path / "again")])
