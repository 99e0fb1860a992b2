"""The engine stays small."""

import importlib.util
from pathlib import Path

SCRIPT = Path(__file__).parents[1] / "benchmarks" / "code_lines.py"


def load():
    spec = importlib.util.spec_from_file_location("code_lines", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


LIMIT = 5000 + 60 + 245 + 700 + 20 + 150 + 295 + 55
"""Sixty are for the build of compiled CPU code, which two plugin groups share; the rest is what
drafts with laws, estimates, tapped layers, lengths of their own and an account by depth take, and
what keeps pages in further tiers: the interface and who owns a page that moves. Twenty
are for page accounts that cost a few nanoseconds a page, 150 for what eviction policies are
told: the content of pages that come back, time, and how long requests ask for ranges to stay. The
last number is for requests whose outputs continue each other's (beam search): the search, who takes
over whose pages, and waiting for each other without holding anybody up. Fifty-five
are for the operations that families lend to heads, and for the time of drafters on the host."""


def test_the_core_without_its_conformance_kit_stays_small():
    assert load().by_folder()["core (engine)"]["code_lines"] <= LIMIT


def test_blank_lines_comments_and_docstrings_do_not_count(tmp_path):
    path = tmp_path / "x.py"
    body = ["x = [", "    1,", "]  # three lines", "", "def f():", '    """D."""', "    return 1"]
    path.write_text("\n".join(['"""A', 'text."""', "", "# why", *body, ""]))
    assert load().code_lines(path) == 5
