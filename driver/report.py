"""What a person sees of a run: a live progress line, and the final tables."""

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Literal

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.markup import escape
from rich.table import Table
from rich.text import Text

LATENCIES = {"TTFT": "ttft", "TPOT": "tpot", "ITL": "itl", "chunk gap": "chunk_gap", "E2E": "e2el"}
SETS = {
    "ttft": "requests",
    "tpot": "with 2+ tokens",
    "itl": "later tokens",
    "chunk_gap": "later chunks",
    "e2el": "requests",
}
STATISTICS = {"mean": "mean", "P50": "median", "P90": "p90", "P99": "p99"}


@dataclass(frozen=True)
class Progress:
    """The state of a run; `now_s` is the run's clock (virtual or wall), `kv_usage` 0 to 1."""

    now_s: float
    done: int
    total: int
    running: int = 0
    waiting: int = 0
    output_tokens: int = 0
    kv_usage: float = 0.0

    def line(self) -> str:
        """One line of text."""
        rate = self.output_tokens / self.now_s if self.now_s > 0 else 0.0
        return (
            f"{self.done}/{self.total} requests, {self.running} running, {self.waiting} waiting, "
            f"{rate:,.0f} tokens/s, KV {self.kv_usage:.0%}, {self.now_s:.1f} s"
        )


class ProgressView:
    """A live line on a terminal; elsewhere a line now and then. Use it as a context manager.

    `shown=False` prints nothing. Only `every_s` of real time apart (0.1 s on a terminal, 10 s
    elsewhere) does an update cost more than a look at the clock.
    """

    def __init__(
        self,
        shown: bool = True,
        console: Console | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._console = console or Console(stderr=True)
        self._clock = clock
        self._shown = shown
        self._live = (
            Live(console=self._console, auto_refresh=False, transient=True)
            if shown and self._console.is_terminal
            else None
        )
        self._every_s = 0.1 if self._live else 10.0
        self._next_s = 0.0

    def __enter__(self) -> "ProgressView":
        self._next_s = self._clock() + self._every_s
        if self._live:
            self._live.start()
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        if self._live:
            self._live.stop()

    @property
    def due(self) -> bool:
        """True when the next update would be shown: ask before gathering its numbers."""
        return self._shown and self._clock() >= self._next_s

    def update(self, progress: Progress) -> None:
        """Show this state, unless the last one is too recent."""
        if not self.due:
            return
        self._next_s = self._clock() + self._every_s
        if self._live:
            self._live.update(Text(progress.line()), refresh=True)
        else:
            self._console.print(Text(progress.line()))


class ReportConsole(Console):
    """A console whose reader may leave early: `| head` ends no run, and no sweep."""

    def on_broken_pipe(self) -> None:
        """Called by rich, which would exit: here the rest goes nowhere."""
        with suppress(SystemExit):
            super().on_broken_pipe()


@dataclass(frozen=True)
class Sample:
    """One request's prompt and the outputs of its samples as text, to look at."""

    index: int
    prompt: str
    outputs: Sequence[str]


def print_report(
    console: Console,
    summary: Mapping[str, Any],
    composition: Mapping[str, str],
    inert: Sequence[str] = (),
    failures: Sequence[tuple[int, str]] = (),
    sample: Sample | None = None,
    shown_failures: int = 5,
) -> None:
    """Print the final report.

    `summary` is that of `summarize`, `composition` maps a seam to its component's name, `inert`
    lists the seams whose component was never exercised, `failures` holds (index, reason).
    """
    console.print(_composition(composition, inert))
    console.print(_counts(summary))
    console.print(_latencies(summary))
    console.print(_figures(summary))
    if sample is not None:
        console.print(_sample(sample))
    if failures:
        console.print(_failures(failures, shown_failures))


def _table(title: str) -> Table:
    title_text = Text(f"\n{title}", "bold")
    return Table(title=title_text, title_justify="left", box=None, pad_edge=False)


def _composition(composition: Mapping[str, str], inert: Sequence[str]) -> Table:
    table = _table("Composition")
    table.add_column("seam")
    table.add_column("component")
    for seam, name in composition.items():
        mark = " [yellow]inert: never exercised in this run[/yellow]" if seam in inert else ""
        table.add_row(escape(seam), escape(name) + mark)
    return table


def _counts(summary: Mapping[str, Any]) -> Text:
    parts = [f"{summary['completed']} completed"]
    parts += [f"{summary[k]} {k}" for k in ("failed", "aborted", "unfinished") if summary[k]]
    if summary["samples"] > summary["completed"]:
        parts.append(f"{summary['samples']} samples given out")
    if summary["dropped_samples"]:
        parts.append(f"{summary['dropped_samples']} dropped (best_of, beams)")
    clock: Literal["wall", "virtual"] = summary["clock"]
    return Text(f"\nRequests: {', '.join(parts)} in {summary['duration']:.2f} s ({clock} clock)")


def _latencies(summary: Mapping[str, Any]) -> Table:
    table = _table("Latency (ms) of completed requests")
    table.add_column("")
    for name in STATISTICS:
        table.add_column(name, justify="right")
    table.add_column("of", justify="right")
    table.add_column("")
    for label, key in LATENCIES.items():
        values = [summary[f"{stat}_{key}_ms"] for stat in STATISTICS.values()]
        cells = [number(value, 2) for value in values]
        table.add_row(label, *cells, number(summary["sets"][key]["count"]), SETS[key])
    return table


def _figures(summary: Mapping[str, Any]) -> Table:
    table = _table("Throughput and work")
    table.show_header = False
    table.add_column("")
    table.add_column("")
    for label, value in figures(summary).items():
        table.add_row(label, value)
    return table


def figures(summary: Mapping[str, Any]) -> dict[str, str]:
    """Label -> value of every figure that is defined for this run."""
    tokens = summary["tokens"]
    limits = ", ".join(
        f"{name.removesuffix('_ms')} <= {limit:g} ms"
        for name, limit in summary["goodput_limits"].items()
    )
    kinds = ("prompt_computed", "recomputed", "decode", "drafted", "padding")
    lost = ", ".join(f"{name} {error:.2%}" for name, error in summary["stored_error"].items())
    by_turn = ", ".join(map(percent, summary["prefix_cache_hit_rate_by_turn"].values()))
    named = {
        "input tokens": number(summary["total_input_tokens"]),
        "output tokens": number(summary["total_output_tokens"]),
        "output tokens/s": number(summary["output_throughput"], 1),
        "requests/s": number(summary["request_throughput"], 2),
        f"good requests/s ({limits})": number(summary["request_goodput"], 2),
        "prefix cache hit rate": percent(summary["prefix_cache_hit_rate"]),
        "hit rate by turn": by_turn or UNDEFINED,
        "KV usage, mean": percent(summary["kv_usage"]["mean"]),
        "KV usage, peak": percent(summary["kv_usage"]["peak"]),
        "preemptions": number(summary["preemptions"]),
        "draft acceptance rate": percent(summary["spec_decode_acceptance_rate"]),
        "acceptance length": number(summary["spec_decode_acceptance_length"], 2),
        "accepted by position": shares(summary["spec_decode_per_position_acceptance_rates"]),
        "given those before": shares(summary["conditional_acceptance"]),
        "drafts offered and cut": number(summary["candidates"]["cut"] or None),
        "tokens emitted per pass": number(summary["emitted_per_pass"], 2),
        **_kv_memory(summary.get("kv_memory")),
        **_speculation(summary.get("speculation")),
        "steps": number(summary["steps"]),
        "tokens run": f"{tokens['tokens_run']:,} = "
        + " + ".join(
            f"{tokens[kind]:,} {kind.replace('_', ' ')}" for kind in kinds if tokens[kind]
        ),
        "memory bandwidth used (MBU)": percent(summary["mbu"]),
        "error of cached rows": lost or UNDEFINED,
    }
    return {label: value for label, value in named.items() if value != UNDEFINED}


def _kv_memory(found: Mapping[str, Any] | None) -> dict[str, str]:
    """Where the slots of the pages went; the PagedAttention paper's figure 2."""
    if not found or not found["samples"]:
        return {}
    kinds = ("tokens", "reserved", "internal", "external", "cached", "free")
    return {
        "KV slots": ", ".join(f"{kind} {found[kind]:.1%}" for kind in kinds if found[kind]),
        "KV waste (slots at work without a token)": percent(found["waste"]),
        "pages in one run": number(found["pages_per_run"], 1),
    }


def _speculation(found: Mapping[str, Any] | None) -> dict[str, str]:
    """What drafting took, and what it should gain by the model of `driver/speculation.py`."""
    if found is None:
        return {}
    drafting = found["catch_up_s"] + found["draft_s"]
    taken = found["target_s"] + drafting
    return {
        "time of drafting": percent(drafting / taken) if drafting else UNDEFINED,
        "draft pass / plain step (c)": number(found["draft_step_share"], 3),
        "verifying / plain step (v)": number(found["verify_inflation"], 3),
        "speed-up by the model": number(found["modelled_speedup"], 2),
    }


UNDEFINED = "-"


def number(value: float | None, decimals: int = 0) -> str:
    """A figure with thousands separators; "-" for one that is not defined."""
    return UNDEFINED if value is None else f"{value:,.{decimals}f}"


def percent(value: float | None) -> str:
    """A share as a percentage; "-" for one that is not defined."""
    return UNDEFINED if value is None else f"{value:.1%}"


def shares(values: Sequence[float | None]) -> str:
    """Shares as percentages, in a row."""
    return " ".join(UNDEFINED if v is None else f"{v:.0%}" for v in values) or UNDEFINED


def _sample(sample: Sample, most: int = 300, shown: int = 8) -> RenderableType:
    count = len(sample.outputs)
    what = "its output" if count == 1 else f"its {count} outputs"
    parts = [Text(f"\nRequest {sample.index}: the end of its prompt, and {what}", "bold")]
    parts.append(Text(sample.prompt[-most:], "dim"))
    for number, output in enumerate(sample.outputs[:shown], start=1):
        if count > 1:
            parts.append(Text(f"{number} of {count}:", "bold"))
        parts.append(Text(output[:most]))
    if count > shown:
        parts.append(Text(f"and {count - shown} more; see requests.jsonl", "dim"))
    return Group(*parts)


def _failures(failures: Sequence[tuple[int, str]], shown: int) -> Text:
    lines = [f"\n{len(failures)} failed:"]
    lines += [f"  request {index}: {_bare(index, reason)}" for index, reason in failures[:shown]]
    if len(failures) > shown:
        lines.append(f"  and {len(failures) - shown} more; see requests.jsonl")
    return Text("\n".join(lines), "red")


def _bare(index: int, reason: str) -> str:
    return reason.removeprefix(f"request {index}: ")
