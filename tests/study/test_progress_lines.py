"""A study that writes to a file says how far it is."""

import io

from interlock.study.order import run_order
from interlock.study.progress_lines import ProgressLines
from tests.study.made import factors, grid


def test_a_log_gets_a_line_now_and_then_and_one_for_the_last_run():
    now, log = [0.0], io.StringIO()
    lines = ProgressLines(log, every_s=10.0, clock=lambda: now[0])
    order = run_order(grid(factors(cache="none radix")), 2, 0)
    for done, place in enumerate(order, start=1):
        now[0] += 4.0
        lines.tell(done, len(order), place)
    told = log.getvalue().splitlines()
    assert [line.split(",")[0] for line in told] == ["3/6 runs", "6/6 runs"]
    assert told[-1].endswith(order[-1].folder)


def test_nothing_is_written_where_a_bar_is_drawn():
    log = io.StringIO()
    lines = ProgressLines(log, shown=False)
    lines.tell(1, 1, run_order(grid(factors(cache="none radix")), 1, 0)[0])
    assert log.getvalue() == ""
