"""CSV and Parquet of runs, cells and findings."""

import csv
import io
import math
import sys
from dataclasses import replace

import pytest

from interlock.core.errors import RunFolderError
from interlock.study.report.export import (
    MissingExtraError,
    cell_rows,
    csv_lines,
    finding_rows,
    frame,
    run_rows,
    write_parquet,
    write_tables,
)
from tests.full_disk import full_disk


def read(path):
    return list(csv.DictReader(io.StringIO(path.read_text(encoding="utf-8"))))


def test_every_run_is_one_row_with_its_levels_and_metrics(small, tmp_path):
    write_tables(small, tmp_path)
    rows = read(tmp_path / "results.csv")
    assert len(rows) == len(small.observations)
    for row, one in zip(rows, small.observations, strict=True):
        assert row["cell"] == one.cell == f"cache={row['cache']},spec={row['spec']}"
        assert {key: float(row[key]) for key in one.values} == dict(one.values)


def test_refused_cells_are_rows_with_their_reasons(small):
    rows = {row["cell"]: row for row in cell_rows(small)}
    refusal = small.refusals[0]
    assert rows[refusal.cell.id]["refused"] == refusal.problems[0]
    assert rows[refusal.cell.id]["mean_ttft_ms:median"] is None


def test_every_finding_is_one_row(small):
    findings = small.findings
    kinds = [row["kind"] for row in finding_rows(small)]
    assert kinds.count("cell") == len(findings.contrasts)
    assert kinds.count("level") == len(findings.effects)
    assert kinds.count("interaction") == len(findings.interactions)
    assert kinds.count("noise floor") == len(findings.noise)
    assert kinds.count("drift per run") == len(findings.drift)


def test_a_factor_named_like_a_column_keeps_both(small):
    study = small.study
    factors = (replace(study.factors[0], name="repeat"), *study.factors[1:])
    cells = tuple(replace(c, levels={"repeat": c.levels["cache"]}) for c in small.cells)
    row = run_rows(replace(small, study=replace(study, factors=factors), cells=cells))[0]
    assert row["factor:repeat"] == "none"
    assert row["repeat"] == 0


def test_all_studies_are_read_back_from_parquet_as_they_were(any_study, tmp_path):
    pd = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    written = {path.name for path in write_tables(any_study, tmp_path)}
    assert {
        f"{n}.{kind}" for n in ("results", "cells", "findings") for kind in ("csv", "parquet")
    } == written
    rows, back = run_rows(any_study), pd.read_parquet(tmp_path / "results.parquet")
    assert len(back) == len(rows)
    for metric in any_study.study.metrics[:1] if rows else ():
        assert back[metric.key].dtype == "float64"
        for row, value in zip(rows, back[metric.key], strict=True):
            assert row[metric.key] == value or (row[metric.key] is None and math.isnan(value))
    if rows:
        assert [row["failure"] for row in rows] == list(back["failure"])


def test_without_the_extra_there_is_csv_and_the_error_names_the_extra(small, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    written = write_tables(small, tmp_path)
    assert sorted(path.suffix for path in written) == [".csv"] * 3
    with pytest.raises(MissingExtraError, match=r"interlock\[study\]"):
        frame(run_rows(small))


def test_a_name_that_a_spreadsheet_would_run_is_text_and_numbers_are_not_touched():
    rows = [{"name": "=HYPERLINK(1)", "level": "-1", "value": -1.5, "none": None, "nan": math.nan}]
    row = next(csv.DictReader(io.StringIO("\n".join(csv_lines(rows)))))
    assert row == {"name": "'=HYPERLINK(1)", "level": "-1", "value": "-1.5", "none": "", "nan": ""}


def test_a_noise_floor_of_too_few_pairs_has_no_figure_and_says_why(few, tmp_path):
    write_tables(few, tmp_path)
    rows = [row for row in read(tmp_path / "findings.csv") if row["kind"] == "noise floor"]
    assert rows
    assert {(row["value"], row["verdict"], row["num_pairs"]) for row in rows} == {
        ("", "too few pairs", "1")
    }


def test_a_parquet_file_on_a_full_disk_is_named(tmp_path):
    pytest.importorskip("pyarrow")
    with full_disk(), pytest.raises(RunFolderError, match=r"cells\.parquet: .* File too large$"):
        write_parquet([{"cell": "a"}], tmp_path, "cells")
    assert not list(tmp_path.iterdir())
