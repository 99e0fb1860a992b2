"""A study's runs, cells and findings as CSV and Parquet: one row each, for other tools."""

import csv
import io
import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from interlock.core.errors import ConfigError
from interlock.driver.run_folder import write_bytes, write_file
from interlock.study.findings import Contrast, Estimate
from interlock.study.report.results import Results
from interlock.study.verdicts import TOO_FEW

if TYPE_CHECKING:
    from pandas import DataFrame

Rows = list[dict[str, Any]]
"""Every row has the same keys."""


def run_rows(results: Results) -> Rows:
    """One row a run, failed ones included: its cell's levels, metrics, quality, machine."""
    levels = {cell.id: cell.levels for cell in results.cells}
    seen = results.observations
    metrics = _union(one.values for one in seen)
    metrics |= dict.fromkeys(metric.key for metric in results.study.metrics)
    quality, machine = _union(one.quality for one in seen), _union(one.machine for one in seen)
    fixed = {"cell", "repeat", "replica", "place", "started_s", "workload_sha256", "inert"}
    fixed |= {"equal_tokens", "failure", *metrics}
    factors = [factor.name for factor in results.study.factors]
    return [
        {
            "cell": one.cell,
            **{
                f"factor:{name}" if name in fixed else name: levels.get(one.cell, {}).get(name)
                for name in factors
            },
            "repeat": one.repeat,
            "replica": one.replica,
            "place": one.place,
            "started_s": one.started_s,
            **{key: one.values.get(key) for key in metrics},
            "equal_tokens": one.equal_tokens,
            **{f"quality:{key}": one.quality.get(key) for key in quality},
            **{f"machine:{key}": one.machine.get(key) for key in machine},
            "inert": ";".join(one.inert),
            "workload_sha256": one.workload_sha256,
            "failure": one.failure,
        }
        for one in seen
    ]


def cell_rows(results: Results) -> Rows:
    """One row a cell, refused ones included with their reasons."""
    found = {cell.cell: cell for cell in results.findings.cells}
    refused = {refusal.cell.id: refusal for refusal in results.refusals}
    cells = {cell.id: cell for cell in (*results.cells, *(r.cell for r in results.refusals))}
    keys = [metric.key for metric in results.compared]
    told = sorted({what for seen in found.values() for what in seen.quality})
    rows = []
    for name, cell in cells.items():
        seen, refusal = found.get(name), refused.get(name)
        rows.append(
            {
                "cell": name,
                "overrides": " ".join(cell.overrides),
                "runs": seen.num_runs if seen else 0,
                "failed": seen.num_failed if seen else 0,
                "pareto": seen.pareto if seen else False,
                **{
                    f"{key}:{what}": values.get(key)
                    for key in keys
                    for what, values in (
                        ("median", seen.medians if seen else {}),
                        ("low", seen.lows if seen else {}),
                        ("high", seen.highs if seen else {}),
                    )
                },
                "equal_tokens": seen.equal_tokens if seen else None,
                **{f"quality:{what}": seen.quality.get(what) if seen else None for what in told},
                "inert": ";".join(seen.inert) if seen else "",
                "refused": " ".join(refusal.problems) if refusal else "",
            }
        )
    return rows


def finding_rows(results: Results) -> Rows:
    """One row a contrast, effect, interaction, noise floor and drift: `kind` says which."""
    findings = results.findings
    return [
        *(_contrast_row("cell", one) for one in findings.contrasts),
        *(_contrast_row("level", one) for one in findings.effects),
        *(
            _finding("interaction", one.metric, one.first, one.second, one.estimate)
            for one in findings.interactions
        ),
        *(
            _finding("noise floor", one.metric, "", "", None)
            | {
                "value": one.value,
                "num_pairs": one.num_pairs,
                "verdict": "" if one.is_known else TOO_FEW,
                "reason": one.source,
            }
            for one in findings.noise
        ),
        *(
            _finding("drift per run", one.metric, "", "", None) | {"value": one.per_run, "p": one.p}
            for one in findings.drift
        ),
    ]


def _contrast_row(kind: str, one: Contrast) -> dict[str, Any]:
    row = _finding(kind, one.metric, one.what, one.against, one.estimate)
    return row | {"verdict": one.verdict, "reason": one.reason}


def _finding(
    kind: str, metric: str, what: str, against: str, estimate: Estimate | None
) -> dict[str, Any]:
    names = Estimate.__dataclass_fields__
    numbers = asdict(estimate) if estimate else dict.fromkeys(names)
    named = {"kind": kind, "metric": metric, "what": what, "against": against}
    return {**named, **numbers, "verdict": "", "reason": ""}


def _union(maps: Iterator[Mapping[str, Any]]) -> dict[str, None]:
    return {key: None for one in maps for key in one}


def write_tables(results: Results, directory: Path) -> list[Path]:
    """Write results, cells and findings as .csv, and as .parquet where the extra is installed."""
    tables = {
        "results": run_rows(results),
        "cells": cell_rows(results),
        "findings": finding_rows(results),
    }
    written = []
    for name, rows in tables.items():
        path = directory / f"{name}.csv"
        write_file(path, csv_lines(rows))
        written.append(path)
    try:
        return [*written, *(write_parquet(rows, directory, name) for name, rows in tables.items())]
    except MissingExtraError:
        return written


class MissingExtraError(ConfigError):
    """Something that an optional extra brings is not installed."""


def csv_lines(rows: Rows) -> Iterator[str]:
    """A header and a line a row. What is not defined is empty.

    A text that a spreadsheet would run as a formula gets an apostrophe before it.
    """
    if rows:
        yield _line(list(rows[0]))
    for row in rows:
        yield _line(list(row.values()))


def _line(values: list[Any]) -> str:
    buffer = io.StringIO()
    csv.writer(buffer, lineterminator="").writerow(map(_field, values))
    return buffer.getvalue()


def _field(value: Any) -> Any:
    if isinstance(value, float) and math.isnan(value):
        return ""
    if isinstance(value, str):
        clean = value.replace("\0", "\\x00").encode("utf-8", "backslashreplace").decode("utf-8")
        return f"'{clean}" if clean[:1] in ("=", "+", "-", "@") and not _is_number(clean) else clean
    return value


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def frame(rows: Rows) -> "DataFrame":
    """The rows as a pandas DataFrame; numbers stay numbers where all of them are undefined.

    Raises MissingExtraError without pandas.
    """
    try:
        import pandas as pd
    except ImportError as error:
        raise MissingExtraError(_missing("pandas", error)) from error
    table = pd.DataFrame(rows)
    for name in table.columns:
        values = [row[name] for row in rows]
        if not any(isinstance(value, str) for value in values) and None in values:
            table[name] = table[name].astype("float64")
        elif any(isinstance(value, str) for value in values):
            table[name] = table[name].astype("str")
    return table


def write_parquet(rows: Rows, directory: Path, name: str) -> Path:
    """Write `name`.parquet.

    Raises MissingExtraError without pandas and pyarrow, RunFolderError where it cannot be written.
    """
    path = directory / f"{name}.parquet"
    table = frame(rows)
    try:
        content = table.to_parquet(engine="pyarrow", index=False)
    except ImportError as error:
        raise MissingExtraError(_missing("pyarrow", error)) from error
    write_bytes(path, content)
    return path


def _missing(what: str, error: ImportError) -> str:
    return f"Parquet needs {what} ({error}): pip install 'interlock[study]'; the CSV has the same"
