"""What training-time test buys an EAGLE-3 head: acceptance by position, with and without it.

    python benchmarks/training_time_test.py --heads /tmp/heads \
        --json docs/results/training_time_test.json --page docs/results/training_time_test.md

One head is trained on the target's features alone (--ttt 1), another on its own outputs as well
(--ttt 4), both by the recipe with equally many steps over the same windows. Each is measured on the
same held-out prompts (greedy, chains of seven). A place's acceptance is given that all drafts
before it were accepted. Heads that are in the folder already are measured as their training.json
says.
"""

import argparse
import json
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from interlock.conf.find_model import shipped_models
from interlock.models.recipe.train_drafter import main as train_drafter

FIELDS = ("acceptance", "agreement", "steps", "cpu_seconds", "target_cpu_seconds", "torch")


def trained(ttt: int, args: argparse.Namespace) -> dict[str, Any]:
    """What the recipe reports of the head with so many unrolled steps; trained if it is missing."""
    out = args.heads / f"ttt-{ttt}"
    if not (out / "training.json").exists():
        train_drafter([
            "eagle3", "--target", str(shipped_models()[args.model]), "--ttt", str(ttt),
            "--steps", str(args.steps), "--store", str(args.store or args.heads / "store"),
            "--own-windows", str(args.windows), "--out", str(out),
            *(["--text", str(args.text)] if args.text else []),
        ])  # fmt: skip
    report = json.loads((out / "training.json").read_text())
    if report["steps"] != args.steps or report["options"]["ttt"] != ttt:
        raise SystemExit(f"{out} holds a head of {report['steps']} steps, {report['options']}")
    return {"ttt": ttt, **{name: report[name] for name in FIELDS}}


def table_of(rows: list[dict[str, Any]]) -> list[list[str]]:
    """Header and rows."""
    places = len(rows[0]["acceptance"]["accepted_share"])
    header = ["unrolled steps", "tokens per pass", *map(str, range(1, 1 + places)), "CPU s"]
    lines = [header]
    for row in rows:
        shares = [f"{share:.2f}" for share in row["acceptance"]["accepted_share"]]
        passes = f"{row['acceptance']['emitted_per_pass']:.2f}"
        lines.append([str(row["ttt"]), passes, *shares, str(row["cpu_seconds"])])
    return lines


def page_of(model: str, rows: list[dict[str, Any]]) -> str:
    """The table as Markdown, with what it is about."""
    header, *lines = table_of(rows)
    first, last = rows[0], rows[-1]
    second = [row["acceptance"]["accepted_share"][1] for row in (first, last)]
    return "\n".join([
        "# What training-time test buys an EAGLE-3 head",
        "",
        f"EAGLE-3 heads for `{model}`, {first['steps']} steps each over the same windows; greedy"
        " chains of at most seven drafts on",
        f"{first['acceptance']['prompts']} held-out prompts. Columns 1 to 7: how often the draft in"
        " that place is accepted when all before it were.",
        "",
        f"| {' | '.join(header)} |",
        f"|{'---|' * len(header)}",
        *(f"| {' | '.join(line)} |" for line in lines),
        "",
        f"The second place: {second[0]:.2f} with {first['ttt']} unrolled, {second[1]:.2f} with"
        f" {last['ttt']}. From there on a head reads its own output instead",
        "of the target's layers, which only the unrolled steps have shown it.",
        "",
    ])  # fmt: skip


def main() -> None:
    """Train what is missing; print and write the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="tiny-gqa", choices=sorted(shipped_models()))
    parser.add_argument("--ttt", type=int, nargs="+", default=[1, 4], help="steps to unroll")
    parser.add_argument("--steps", type=int, default=1800, help="of training")
    parser.add_argument("--text", type=Path, help="folder of text (default: Python's stdlib)")
    parser.add_argument("--windows", type=int, default=1536, help="continuations of the text")
    parser.add_argument("--heads", type=Path, required=True, help="folder of the trained heads")
    parser.add_argument("--store", type=Path, help="what the target computed (default: in --heads)")
    parser.add_argument("--json", type=Path, help="write the numbers to this file")
    parser.add_argument("--page", type=Path, help="write the table to this Markdown file")
    args = parser.parse_args()
    rows = [trained(ttt, args) for ttt in args.ttt]
    header, *lines = table_of(rows)
    shown = Table(*header)
    for line in lines:
        shown.add_row(*line)
    Console().print(shown)
    if args.json:
        args.json.write_text(json.dumps({"model": args.model, "rows": rows}, indent=1) + "\n")
    if args.page:
        args.page.write_text(page_of(args.model, rows))


if __name__ == "__main__":
    main()
