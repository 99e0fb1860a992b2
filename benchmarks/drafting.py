"""Tokens emitted per target pass by each drafter on held-out prompts, greedy and at temperature 1.

    python benchmarks/drafting.py --json docs/results/drafting.json

Prompts are pieces of the held-out text of each shipped model, evenly spaced. A pass is one decode
or verification of one request; the token that ends a prefill is left out. Every drafter with a
shipped head drafts chains of up to --drafts tokens (Medusa and Hydra: one for each of their heads),
verified by the target's own draws; below them trees, and sampled drafts under rules that know the
drafter's law. A drafter without a head for a model is left out by name. CPU seconds, of one thread,
stand beside plain decoding of the same requests in this run.
"""

import argparse
import json
import platform
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table

from interlock.conf.find_model import find_model
from interlock.core.assemble import assemble
from interlock.core.errors import ConfigError
from interlock.core.registry import load_registry
from interlock.core.request import Request, SamplingParams

PROMPT_TOKENS = 64
CHAINS = ("ngram", "suffix", "draft_model", "mtp", "eagle", "eagle3", "dflash", "dspark")
SAMPLED = ("draft_model", "mtp", "eagle", "eagle3", "dspark")
TREES = (
    ("spec=suffix", "spec.num_drafts=16", "spec.tree=true"),
    ("spec=medusa", "spec.num_drafts=16", "spec.tree=auto"),
    ("spec=hydra", "spec.num_drafts=16", "spec.tree=auto"),
    ("spec=eagle", "spec.num_drafts=25", "spec.tree=mc_sim_7b_63"),
    ("spec=eagle2", "spec.num_drafts=25", "spec.depth=7"),
    ("spec=eagle3", "spec.num_drafts=25", "spec.tree=dynamic", "spec.depth=7"),
    ("spec=dflash", "spec.num_drafts=24", "spec.tree=ddtree"),
)


def measure(
    model: str, spec: list[str], temperature: float, prompts: int, tokens: int
) -> dict[str, Any]:
    """Serve the prompts, 8 at a time; what came of the drafts."""
    engine = assemble(
        [f"model={model}", "scheduler.max_requests=8", "threads=1", "cache=none", *spec]
    )
    assert engine.codec is not None
    ids = engine.codec.encode(
        (
            find_model(model, list(load_registry().formats.values())).directory / "held_out.txt"
        ).read_text()
    )
    stride = (len(ids) - PROMPT_TOKENS) // prompts
    sampling = SamplingParams(temperature=temperature, max_tokens=tokens, ignore_eos=True)
    for index in range(prompts):
        start = index * stride
        engine.submit(Request(index, tuple(ids[start : start + PROMPT_TOKENS]), sampling))
    start_s = time.process_time()
    records = [output.finished for output in engine.outputs() if output.finished]
    seconds = time.process_time() - start_s
    passes = sum(record.target_passes for record in records)
    emitted = sum(record.pass_tokens for record in records)
    ledger = engine.core.ledger
    rounds = max(1, ledger.draft_rounds)
    return {
        "model": model,
        "spec": spec,
        "temperature": temperature,
        "emitted_per_pass": round(emitted / passes, 3),
        "acceptance_length": round(1 + ledger.accepted / rounds, 3),
        "accepted_by_position": [round(n / rounds, 3) for n in ledger.accepted_by_depth],
        "passes": passes,
        "cpu_seconds": round(seconds, 2),
        "output_token_ids": {r.index: r.output_token_ids for r in records},
    }


def compositions(drafts: int, temperature: float, only: list[str] | None) -> list[list[str]]:
    """Overrides of each row: chains, then trees, then (where tokens are drawn) sampled drafts.

    With `only` those of these drafters, after plain decoding.
    """
    most = f"spec.num_drafts={drafts}"
    found = [["spec=none"], *([f"spec={name}", most] for name in CHAINS)]
    found += [["spec=medusa"], ["spec=hydra"], ["spec=lookahead"]]
    found += [list(tree) for tree in TREES]
    if temperature > 0:
        found += [
            [f"spec={name}", most, "spec.proposal=sampled", f"spec/verifier={rule}"]
            for name in SAMPLED
            for rule in ("ratio", "block")
        ]
    if only is None:
        return found
    return [row for row in found if row[0].removeprefix("spec=") in ("none", *only)]


def main() -> None:
    """Measure every model, drafter and temperature; print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, help="write the numbers to this file")
    parser.add_argument("--prompts", type=int, default=48)
    parser.add_argument("--tokens", type=int, default=64, help="output tokens per prompt")
    parser.add_argument("--drafts", type=int, default=7, help="candidates of a chain")
    parser.add_argument("--models", nargs="+", default=["tiny-gqa", "tiny-mla"], metavar="NAME")
    parser.add_argument("--temperatures", type=float, nargs="+", default=[0.0, 1.0], metavar="T")
    parser.add_argument("--drafters", nargs="+", metavar="NAME",
                        help="of `spec`, beside plain decoding; default: all")  # fmt: skip
    args = parser.parse_args()
    cells = [
        (model, temperature, spec)
        for model in args.models
        for temperature in args.temperatures
        for spec in compositions(args.drafts, temperature, args.drafters)
    ]
    console = Console()
    table = Table("model", "temperature", "drafter", "emitted per pass", "CPU s", "same tokens")
    rows, left_out = [], []
    for model, temperature, spec in track(cells, console=console, description="serving"):
        try:
            row = measure(model, spec, temperature, args.prompts, args.tokens)
        except ConfigError as error:
            left_out.append({"model": model, "spec": spec, "reason": str(error)})
            continue
        if spec == ["spec=none"]:
            plain = row["output_token_ids"]
        equal = sum(row["output_token_ids"][i] == plain[i] for i in plain)
        row["requests_with_the_tokens_of_plain_decoding"] = f"{equal}/{len(plain)}"
        del row["output_token_ids"]
        rows.append(row)
        table.add_row(
            model, str(temperature), " ".join(spec).replace("spec=", "", 1),
            f"{row['emitted_per_pass']:.2f}", f"{row['cpu_seconds']:.1f}", f"{equal}/{len(plain)}",
        )  # fmt: skip
    console.print(table)
    for cell in left_out:
        why = cell["reason"].partition(";")[0]
        console.print(f"left out: {cell['model']} {' '.join(cell['spec'])}: {why}")
    report = {
        "rows": rows,
        "left_out": left_out,
        "prompts": args.prompts,
        "tokens": args.tokens,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "interlock": version("interlock"),
    }
    if args.json:
        args.json.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
