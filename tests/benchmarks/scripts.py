"""Runs benchmarks by their command line, in this process: starting another one takes seconds."""

import contextlib
import io
import json
import runpy
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "benchmarks"


@dataclass(frozen=True)
class Ended:
    """How a script ended, and what it printed."""

    code: int
    out: str
    err: str


def run(name: str, *arguments: str) -> Ended:
    """`python benchmarks/NAME.py ARGUMENTS`; what it imports of the repository is its own."""
    out, err, threads = io.StringIO(), io.StringIO(), torch.get_num_threads()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", [str(FOLDER / f"{name}.py"), *arguments])
        elsewhere = [path for path in sys.path if Path(path).resolve() != ROOT]
        patch.setattr(sys, "path", [str(FOLDER), *elsewhere])
        for module in _ours():
            patch.delitem(sys.modules, module)
        try:
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
                runpy.run_path(sys.argv[0], run_name="__main__")
            said: object = 0
        except SystemExit as end:
            said = end.code
        for module in _ours():
            del sys.modules[module]
    torch.set_num_threads(threads)
    if isinstance(said, str):
        said, err = 1, io.StringIO(f"{err.getvalue()}{said}\n")
    return Ended(int(said or 0), out.getvalue(), err.getvalue())


def _ours() -> list[str]:
    return [name for name in sys.modules if name.partition(".")[0] in ("benchmarks", "tests")]


def report(name: str, folder: Path, *arguments: str) -> dict:
    """The file that --json writes, once the script has ended well."""
    path = folder / "report.json"
    ended = run(name, *arguments, "--json", str(path))
    assert ended.code == 0, ended.err + ended.out
    return json.loads(path.read_text(), parse_constant=_not_finite)


def _not_finite(name: str) -> None:
    raise AssertionError(f"{name} in the report")


def numbers(value: object) -> int:
    """How many numbers a report has."""
    if isinstance(value, dict):
        return sum(map(numbers, value.values()))
    if isinstance(value, list):
        return sum(map(numbers, value))
    return isinstance(value, int | float) and not isinstance(value, bool)
