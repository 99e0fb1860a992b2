"""The command that compares ours with peers: its options, the run, the table and the JSON file."""

import argparse
import contextlib
import json
import platform
import shlex
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.beside.cells import CELLS, OURS, PLAIN, WORKS, Comparison, Row, agreement
from benchmarks.beside.page import page
from benchmarks.beside.paired import Progress, paired_ratio
from benchmarks.beside.process import SideError, SideProcess
from benchmarks.beside.shapes import LLAMA, SMOLLM2, write


@dataclass(frozen=True)
class Peer:
    """A system to compare with: its name among the sides, and the Python that has it."""

    name: str
    python: str = sys.executable
    exact_options: tuple[str, ...] = ()
    """Options of the side where only tokens are compared."""


def options(description: str) -> argparse.ArgumentParser:
    """What every comparison can be asked."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--shapes", nargs="+", default=[SMOLLM2.name, LLAMA.name], choices=list(WORKS),
        metavar="NAME", help=f"of {', '.join(WORKS)}; default: the first two")  # fmt: skip
    add("--batches", nargs="+", type=int, default=[1, 8, 32], metavar="N", help="of decode steps")
    add("--repeats", type=int, default=5, help="measurements of each cell and side (default 5)")
    add("--threads", type=int, default=2, help="of each side (default 2)")
    add("--models", type=Path, metavar="DIR",
        help="keep the random checkpoints (2.7 GB) here and use those that are there; default: "
        "a temporary directory")  # fmt: skip
    add("--ours", nargs="*", default=[], metavar="KEY=VALUE",
        help="further overrides of our engine, e.g. scheduler.budget_tokens=512")  # fmt: skip
    add("--cells", nargs="+", default=list(CELLS), choices=CELLS, metavar="CELL",
        help=f"of {', '.join(CELLS)} (of greedy tokens); default: all")  # fmt: skip
    add("--json", type=Path, metavar="PATH", help="write every sample and version to this file")
    add("--add", action="store_true",
        help="keep what --json's file holds of cells that are not measured now")  # fmt: skip
    add("--page", type=Path, metavar="PATH", help="write the table to this file, in Markdown")
    return parser


@contextlib.contextmanager
def started(
    model: Path, dtype: str, peers: Sequence[Peer], args: argparse.Namespace, exact: bool
) -> Iterator[dict[str, SideProcess]]:
    """Ours and the peers' processes, each stopped until it is called."""
    with contextlib.ExitStack() as stack:
        ours = SideProcess(OURS, model, dtype, args.threads, tuple(args.ours))
        sides = {OURS: stack.enter_context(ours)}
        for peer in peers:
            given = peer.exact_options if exact else ()
            process = SideProcess(peer.name, model, dtype, args.threads, given, peer.python)
            sides[peer.name] = stack.enter_context(process)
        yield sides


def compare(peers: Sequence[Peer], args: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """All shapes: rows, agreement, versions."""
    progress = Progress()
    rows: list[Row] = []
    facts: dict[str, Any] = {}
    report: dict[str, Any] = {"agreement_bfloat16": {}, "agreement_float32": {}, "start_s": {}}
    compares_tokens = "agreement" in args.cells
    for name in args.shapes:
        work = WORKS[name]
        progress.say(f"{name}: writing the checkpoint and starting the sides")
        model = write(work.shape, folder)
        with (
            started(model, "bfloat16", peers, args, exact=False) as sides,
            SideProcess(PLAIN, model, "bfloat16", args.threads) as plain,
        ):
            facts |= {side: process.facts for side, process in sides.items()}
            report["start_s"][name] = {s: round(p.start_s, 1) for s, p in sides.items()}
            comparison = Comparison(work, sides, plain, args.repeats, progress)
            rows += comparison.rows(args.cells, args.batches)
            if compares_tokens:
                report["agreement_bfloat16"][name] = agreement(work.shape, sides, 4, 16)
    if compares_tokens:
        smallest = WORKS[args.shapes[0]].shape
        progress.say(f"{smallest.name}: tokens in fp32")
        exact = write(smallest, folder, "float32")
        with started(exact, "float32", peers, args, exact=True) as sides:
            report["agreement_float32"] = {smallest.name: agreement(smallest, sides, 3, 12)}
    progress.clear()
    report["seconds"] = round(time.perf_counter() - progress.start_s)
    return report | {"rows": rows, "sides": facts}


def heads_of(peers: Sequence[str]) -> list[str]:
    """Of the table."""
    return ["shape", "cell", "ours", *peers, "times as fast", "ours is"]


def cells_of(row: Row, peers: Sequence[str]) -> list[str]:
    """One line of the table."""
    digits = 1 if row.median(OURS) < 100 else 0
    shown = [
        f"{row.median(name):,.{digits}f}" if name in row.samples else "-" for name in (OURS, *peers)
    ]
    best = min(row.peers, key=lambda name: statistics.median(row.samples[name]))
    ratio = paired_ratio(row.samples[best], row.samples[OURS])
    verdict = "tie" if ratio.tie else ("faster" if ratio.median > 1 else "slower")
    of = f" of {best}" if len(peers) > 1 else ""
    return [row.shape, f"{row.cell} ({row.unit})", *shown, f"{ratio}{of}", verdict]


def bandwidth_lines(row: Row) -> Iterator[str]:
    """Decode at batch 1 as a share of what plain products over the same bytes reach."""
    best = min(row.plains, key=lambda name: statistics.median(row.samples[name]), default="")
    for name in dict.fromkeys([*row.plains[:1], *([best] if best else [])]):
        share = paired_ratio(row.samples[name], row.samples[OURS])
        yield (
            f"{row.shape}, batch 1: {share} of the bandwidth of {name.removeprefix(PLAIN + ' ')} "
            f"over the same bytes ({row.median(name):.1f} ms)"
        )


def show(report: Mapping[str, Any], peers: Sequence[Peer]) -> None:
    """The table of ratios, what was chosen, and the versions."""
    names = [peer.name for peer in peers]
    table = Table(*heads_of(names))
    for row in report["rows"]:
        table.add_row(*cells_of(row, names))
    console = Console(width=150 if not sys.stdout.isatty() else None)
    console.print(table)
    for row in report["rows"]:
        for line in bandwidth_lines(row):
            console.print(line)
        if row.note:
            console.print(f"{row.shape}: {row.note}")
    console.print(f"equal greedy tokens, fp32: {report['agreement_float32']}")
    console.print(f"equal greedy tokens, bf16: {report['agreement_bfloat16']}")
    for side, facts in report["sides"].items():
        console.print(f"{side}: {facts}")


def cpu_name() -> str:
    """As the system says."""
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    return next((x.split(":")[1].strip() for x in lines if x.startswith("model name")), "unknown")


def kept(report: dict[str, Any], written: Mapping[str, Any]) -> dict[str, Any]:
    """`report` with what an earlier one holds of other cells, in the order of shapes."""
    new = {(row.shape, row.cell) for row in report["rows"]}
    old = [Row.from_json(row) for row in written["rows"]]
    both = [row for row in old if (row.shape, row.cell) not in new] + report["rows"]
    both.sort(key=Row.place)
    merged = {
        key: {**written[key], **report[key]}
        for key in ("agreement_bfloat16", "agreement_float32", "start_s", "sides")
    }
    return report | merged | {"rows": both, "seconds": report["seconds"] + written["seconds"]}


def run(peers: Sequence[Peer], args: argparse.Namespace, command: str) -> None:
    """Compare, print, write the JSON file; ends with 1 and the reason where a side fails."""
    if args.repeats < 5:
        print(f"--repeats {args.repeats}: fewer than 5 are for a quick look only", file=sys.stderr)
    with contextlib.ExitStack() as stack:
        temporary = tempfile.TemporaryDirectory() if args.models is None else None
        folder = Path(stack.enter_context(temporary)) if temporary else args.models
        try:
            report = compare(peers, args, folder)
        except SideError as error:
            sys.exit(f"\n{error}")
    commands = [shlex.join(("python", command, *sys.argv[1:]))]
    if args.add and args.json and args.json.is_file():
        earlier = json.loads(args.json.read_text(encoding="utf-8"))
        report, commands = kept(report, earlier), earlier["commands"] + commands
    show(report, peers)
    written = report | {
        "commands": commands,
        "rows": [row.as_json() for row in report["rows"]],
        "repeats": args.repeats,
        "threads": args.threads,
        "cpu": cpu_name(),
        "python": platform.python_version(),
    }
    if args.json:
        args.json.write_text(json.dumps(written, indent=1) + "\n", encoding="utf-8")
    if args.page:
        names = [peer.name for peer in peers]
        lines = [cells_of(row, names) for row in report["rows"]]
        bandwidth = [line for row in report["rows"] for line in bandwidth_lines(row)]
        title = f"Beside {' and '.join(names)}"
        text = page(title, written, heads_of(names), lines, bandwidth)
        args.page.write_text(text, encoding="utf-8")
