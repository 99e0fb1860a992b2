"""The benchmark of drafters measures what it says, keeps earlier rows, and divides the residual."""

import json
import sys

import pytest

from benchmarks import speculation
from benchmarks.speculation import WHOLE, arguments, arm, lengths_of, measure, prompts, report
from benchmarks.speculation_page import cells_of, page_of, table_of
from interlock.core.assemble import assemble

QUICK = ["--requests", "2", "--lengths", "2", "--repeats", "2", "--tokens", "12"]


class Quiet:
    """Says nothing."""

    def say(self, text):
        """Not shown."""

    keep = say


@pytest.fixture(scope="module")
def measured():
    args = arguments([*QUICK, "--drafters", "ngram", "--policies", "goodput,dspark"])
    refused = {}
    return args, measure(args, "ngram", 2, Quiet(), refused), refused


def test_every_length_has_a_row_whose_ratio_is_that_of_its_samples(measured):
    _, rows, refused = measured
    assert [row["length"] for row in rows] == ["2", "goodput"]
    assert [list(row.get("beside_best_fixed", {})) for row in rows] == [
        [], ["length", "median", "low", "high"],
    ]  # fmt: skip
    for row in rows:
        assert (row["requests"], row["dtype"], row["drafter"]) == (2, "float32", "ngram")
        assert len(row["samples_s_per_token"]) == 2
        assert row["speedup"]["low"] <= row["speedup"]["median"] <= row["speedup"]["high"]
        assert 1 <= row["emitted_per_pass"] <= 3
        assert min(row["host"].values()) > 0
    assert "makes none" in refused["model=tiny-gqa spec=ngram spec.num_drafts=2 spec/length=dspark"]


def test_the_model_and_the_host_account_for_the_measured_time(measured):
    row = measured[1][0]
    costs = row["costs"]
    assert costs["draft_s"] > 0  # a drafter on the host is timed as well
    spent = row["emitted_per_pass"] / row["modelled_speedup"]
    with_host = (1 + row["host"]["plain"]) * row["emitted_per_pass"]
    assert row["modelled_with_host"] == pytest.approx(with_host / (spent + row["host"]["drafting"]))
    left = (1 + row["residual"]) / (1 + row["residual_of_the_host"])
    assert left == pytest.approx(row["speedup"]["median"] / row["modelled_with_host"])
    assert 0.3 < left < 3  # of two runs on a machine that others use


def test_runs_have_prompts_of_their_own_and_arms_the_same_ones():
    args = arguments([*QUICK, "--drafters", "ngram"])
    engine = assemble(["model=tiny-gqa", "progress=false", "cache=none"])
    given = prompts(args, engine, 3, 4)
    flat = [prompt for run in given for prompt in run]
    assert [len(run) for run in given] == [3] * 4
    assert len(set(flat)) == 12
    assert {len(prompt) for prompt in flat} == {64}
    assert prompts(args, engine, 3, 4) == given


def test_a_drafter_without_a_number_of_candidates_has_one_length():
    args = arguments([])
    assert lengths_of(args, "lookahead") == {WHOLE: []}
    assert lengths_of(args, "suffix")["3"] == ["spec.num_drafts=3"]


def test_plain_decoding_gives_one_token_a_pass():
    args = arguments([*QUICK, "--drafters", "ngram"])
    plain = arm(args, 2, "spec=none")
    plain.seconds_a_token()
    plain.forget()
    assert plain.seconds_a_token() > 0
    assert plain.emitted == plain.passes > 0
    assert list(plain.account.plain_step_s()) == [2]


@pytest.mark.parametrize(
    ("argv", "told"),
    [
        (["--drafters", "ngrams"], "known are"),
        (["--add"], "--add needs --json"),
    ],
)
def test_mistakes_are_told_before_anything_runs(argv, told, capsys):
    with pytest.raises(SystemExit):
        arguments(argv)
    assert told in capsys.readouterr().err


def test_a_later_part_replaces_its_own_cells_and_keeps_the_others(measured, tmp_path, monkeypatch):
    _, rows, refused = measured
    file = tmp_path / "numbers.json"
    args = arguments([*QUICK, "--add", "--json", str(file)])
    others = [row | {"drafter": "suffix"} for row in rows]
    monkeypatch.setattr(sys, "argv", ["speculation", "--drafters", "a"])
    file.write_text(json.dumps(report(args, others + rows, {"x": "y"})))
    monkeypatch.setattr(sys, "argv", ["speculation", "--drafters", "b"])
    found = report(args, [rows[0] | {"tokens_a_second": 7.0}], refused)
    assert [row["drafter"] for row in found["rows"]] == ["suffix", "suffix", "ngram"]
    assert found["rows"][-1]["tokens_a_second"] == 7.0
    assert found["commands"] == ["--drafters a", "--drafters b"]
    assert {"x", *refused} == set(found["left_out"])


def test_page_and_table_have_every_row(measured):
    args, rows, refused = measured
    page = page_of(report(args, rows, refused))
    assert table_of(rows).row_count == 2
    assert all(" | ".join(cells_of(row)) in page for row in rows)
    assert "of 1 have a median more than 10 % below" in page
    assert "spec/length=dspark" in page
    assert speculation.__doc__
