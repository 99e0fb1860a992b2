"""The engine stays small."""

import importlib.util
from pathlib import Path

SCRIPT = Path(__file__).parents[1] / "benchmarks" / "code_lines.py"


def load():
    spec = importlib.util.spec_from_file_location("code_lines", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_core_without_its_conformance_kit_stays_below_5000_code_lines():
    assert load().by_folder()["core (engine)"]["code_lines"] <= 5000


def test_blank_lines_comments_and_docstrings_do_not_count(tmp_path):
    path = tmp_path / "x.py"
    body = ["x = [", "    1,", "]  # three lines", "", "def f():", '    """D."""', "    return 1"]
    path.write_text("\n".join(['"""A', 'text."""', "", "# why", *body, ""]))
    assert load().code_lines(path) == 5
