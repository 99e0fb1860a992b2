"""What a drafter head gains by training on the traffic that it will see.

    python benchmarks/own_traffic.py --json docs/results/own_traffic.json \
        --page docs/results/own_traffic.md

Two kinds of traffic for one target: Python's standard library (what the target was trained on, and
the recipe's default text for heads) and C++ headers (torch/include/c10, which come with torch): a
user whose requests differ from what a generic head has seen. A head of one kind is trained on the
target's continuations of each, by the recipe, with equally many steps and windows, and measured on
held-out prompts of both. Held out are files that no training saw. Tokens per target pass are the
recipe's: greedy, chains of at most seven drafts, the bonus token included.
"""

import argparse
import json
import platform
import tempfile
import time
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from interlock.models.recipe.checkpoint import load_decoder
from interlock.models.recipe.drafters import KINDS, head_class
from interlock.models.recipe.drafters.facts import Drafter
from interlock.models.recipe.drafters.measure import measure
from interlock.models.recipe.drafters.store import Store, open_store
from interlock.models.recipe.drafters.target import Target
from interlock.models.recipe.drafters.texts import TextPlan, encode_documents, read_text
from interlock.models.recipe.train_drafter import train
from interlock.models.recipe.train_lm import nats_per_byte

TORCH = Path(torch.__file__).parent
Text = tuple[Path | None, str]
"""Folder and pattern of files; without a folder the standard library."""
TRAFFIC: dict[str, Text] = {
    "standard library": (None, "*.py"),
    "C++ headers": (TORCH / "include" / "c10", "*.h"),
}
PROMPT_TOKENS, ANSWER_TOKENS = 64, 128
READ_CHARACTERS = 20_000
"""Of the held-out text, to say how well the target knows it."""


@dataclass(frozen=True)
class Traffic:
    """One kind of text, with what the target wrote and computed for it."""

    name: str
    store: Store
    nats_per_byte: float


def prepare(target: Target, name: str, text: Text, args: argparse.Namespace, root: Path) -> Traffic:
    """Let the target continue the text and run over all windows; read some of what is held out."""
    corpus = read_text(target, *text)
    plan = TextPlan(corpus, args.windows, PROMPT_TOKENS, ANSWER_TOKENS, args.seed)
    store = open_store(root, target, plan)
    facts = target.facts(store.counts(target.description.vocab_size))
    store.require(target, head_class(args.kind)(facts).taps)
    read = "\n".join(corpus.held_out)[:READ_CHARACTERS]
    read = read or "\n".join(corpus.train)[-READ_CHARACTERS:]  # few files: none is held out
    with torch.no_grad():
        nats = nats_per_byte(load_decoder(target.directory), encode_documents(target, [read]), read)
    return Traffic(name, store, nats)


def trained(kind: str, target: Target, own: Traffic, steps: int, seed: int) -> Drafter:
    """A head of this kind with the recipe's defaults, rounded as files are."""
    torch.manual_seed(seed)
    head = head_class(kind)(target.facts(own.store.counts(target.description.vocab_size)))
    train(head, own.store, lambda step: step / steps, seed=seed)
    head.round_weights()
    return head


def study(args: argparse.Namespace, root: Path) -> dict[str, Any]:
    """Every head on every traffic."""
    target = Target(args.model)
    texts = dict(args.traffic or TRAFFIC)
    traffic = [prepare(target, name, text, args, root) for name, text in texts.items()]
    rows = []
    for own in traffic:
        start = time.process_time()
        head = trained(args.kind, target, own, args.steps, args.seed)
        seconds = time.process_time() - start
        measured = {}
        for other in traffic:
            quality = measure(head, other.store)
            measured[other.name] = {
                "emitted_per_pass": round(quality.acceptance.emitted_per_pass, 3),
                "agreement": [round(share, 3) for share in quality.agreement],
            }
        rows.append({
            "trained_on": own.name,
            "cpu_seconds": round(seconds),
            "target_cpu_seconds": round(own.store.manifest["target_cpu_seconds"]),
            "store_tokens": own.store.tokens,
            "measured_on": measured,
        })  # fmt: skip
    return {
        "model": args.model, "kind": args.kind, "steps": args.steps, "own_windows": args.windows,
        "seed": args.seed,
        "target_nats_per_byte": {t.name: round(t.nats_per_byte, 3) for t in traffic},
        "rows": rows,
    }  # fmt: skip


def table_of(report: dict[str, Any]) -> list[list[str]]:
    """Header and rows: tokens per target pass, then what a head cost."""
    names = list(report["target_nats_per_byte"])
    header = ["trained on", *names, "CPU s of the head", "of the target"]
    lines = [header]
    for row in report["rows"]:
        passes = [f"{row['measured_on'][name]['emitted_per_pass']:.2f}" for name in names]
        seconds = [str(row["cpu_seconds"]), str(row["target_cpu_seconds"])]
        lines.append([row["trained_on"], *passes, *seconds])
    return lines


def page_of(report: dict[str, Any]) -> str:
    """The table as Markdown, with what it is about."""
    header, *rows = table_of(report)
    lines = [f"| {' | '.join(header)} |", f"|{'---|' * len(header)}"]
    lines += [f"| {' | '.join(row)} |" for row in rows]
    known = report["target_nats_per_byte"].items()
    nats = ", ".join(f"{name} {value:.2f}" for name, value in known)
    return "\n".join([
        "# A head trained on its own traffic, beside one trained on other text",
        "",
        f"Tokens per target pass of `{report['kind']}` heads for `{report['model']}` on held-out"
        " prompts of each",
        f"kind of text (columns), trained for {report['steps']} steps on one of them (rows). Seed"
        f" {report['seed']}, {report['own_windows']} continuations.",
        f"The target's own loss on each text, in nats per byte: {nats}.",
        "",
        *lines,
        "",
    ])  # fmt: skip


def named_text(given: str) -> tuple[str, Text]:
    """NAME=FOLDER/PATTERN."""
    name, found, files = given.partition("=")
    if not (name and found and Path(files).parent.is_dir()):
        raise argparse.ArgumentTypeError(
            f"{given}: give NAME=FOLDER/PATTERN of a folder that is there"
        )
    return name, (Path(files).parent, Path(files).name)


def main() -> None:
    """Train a head on each kind of traffic and measure it on all of them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="tiny-gqa")
    parser.add_argument("--kind", choices=KINDS, default="mtp")
    parser.add_argument("--steps", type=int, default=500, help="of each head")
    parser.add_argument("--windows", type=int, default=1536, help="continuations of each text")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--traffic", nargs="+", type=named_text, metavar="NAME=FOLDER/PATTERN",
                        help="other text than the two kinds above")  # fmt: skip
    parser.add_argument("--store", type=Path, help="keep what the target computed here")
    parser.add_argument("--json", type=Path, help="write the numbers to this file")
    parser.add_argument("--page", type=Path, help="write the table to this Markdown file")
    args = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as scratch:
        report = study(args, args.store or Path(scratch))
    header, *rows = table_of(report)
    shown = Table(*header)
    for row in rows:
        shown.add_row(*row)
    Console().print(shown)
    report |= {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "interlock": version("interlock"),
    }
    if args.json:
        args.json.write_text(json.dumps(report, indent=1) + "\n")
    if args.page:
        args.page.write_text(page_of(report))


if __name__ == "__main__":
    main()
