import io

from rich.console import Console

from interlock.core.ledger import StepLedger
from interlock.core.settings import LimitsConfig
from interlock.core.testing.records import answered, failed
from interlock.driver.metrics import summarize
from interlock.driver.report import Progress, ProgressView, Sample, figures, print_report

COMPOSITION = {"cache/index": "radix", "spec": "eagle"}


def printed(**options) -> str:
    console = Console(file=io.StringIO(), width=140)
    records = options.pop("records", [answered(0, [(100, 1), (110, 1)]), failed(1)])
    summary = summarize(records, StepLedger(), options.pop("limits", None))
    print_report(console, summary, COMPOSITION, **options)
    return console.file.getvalue()


def test_report_shows_composition_latencies_and_counts():
    text = printed()
    assert "1 completed, 1 failed in 0.11 s (wall clock)" in text
    ttft = next(line for line in text.splitlines() if line.startswith("TTFT"))
    assert ttft.split()[1:5] == ["100.00"] * 4
    assert ttft.split()[5:] == ["1", "requests"]
    assert "radix" in text


def test_report_marks_components_that_were_never_exercised():
    text = printed(inert=["spec"])
    marked = [line for line in text.splitlines() if "inert" in line]
    assert len(marked) == 1
    assert marked[0].startswith("spec")


def test_report_lists_the_first_failures_with_reasons_and_counts_the_rest():
    failures = [(i, f"request {i}: the prompt is empty") for i in range(8)]
    text = printed(failures=failures)
    assert "8 failed:" in text
    assert "request 4: the prompt is empty" in text
    assert "request 5" not in text
    assert "and 3 more" in text


def test_markup_in_model_output_is_shown_as_it_is():
    text = printed(sample=Sample(0, "say [red]", ["[/bold] [link]"]), failures=[(0, "bad [/x]")])
    assert "[/bold] [link]" in text
    assert "say [red]" in text
    assert "bad [/x]" in text


def test_undefined_figures_are_left_out_and_latencies_are_dashes():
    summary = summarize([failed(0)], StepLedger())
    shown = figures(summary)
    assert "acceptance length" not in shown
    assert "memory bandwidth used (MBU)" not in shown
    assert not any(name.startswith("good ") for name in shown)
    ttft = next(x for x in printed(records=[failed(0)]).splitlines() if x.startswith("TTFT"))
    assert ttft.split()[1:5] == ["-"] * 4


def test_goodput_names_its_limits():
    summary = summarize([answered(0, [(100, 1)])], StepLedger(), LimitsConfig(ttft_ms=500))
    assert figures(summary)["good requests/s (ttft <= 500 ms)"] == "10.00"


class Ticks:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def test_progress_off_a_terminal_prints_a_line_now_and_then():
    console, clock = Console(file=io.StringIO(), width=120), Ticks()
    with ProgressView(console=console, clock=clock) as view:
        for second in range(25):
            clock.now_s = float(second)
            view.update(Progress(now_s=second, done=second, total=25, output_tokens=10 * second))
    lines = console.file.getvalue().splitlines()
    assert len(lines) == 2
    assert lines[0].startswith("10/25 requests, 0 running, 0 waiting, 10 tokens/s")


def test_progress_on_a_terminal_redraws_one_line():
    console = Console(file=io.StringIO(), width=120, force_terminal=True)
    clock = Ticks()
    with ProgressView(console=console, clock=clock) as view:
        view.update(Progress(now_s=0, done=0, total=4))
        clock.now_s = 0.2
        view.update(Progress(now_s=0.2, done=1, total=4, running=3, kv_usage=0.5))
    text = console.file.getvalue()
    assert "1/4 requests, 3 running" in text
    assert "0/4" not in text


def test_hidden_progress_prints_nothing():
    console = Console(file=io.StringIO(), force_terminal=True)
    with ProgressView(shown=False, console=console) as view:
        view.update(Progress(now_s=1, done=1, total=1))
        assert not view.due
    assert console.file.getvalue() == ""
