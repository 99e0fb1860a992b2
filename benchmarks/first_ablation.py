"""What the prefix index and the drafter each contribute, on the default workload: table and figure.

    python benchmarks/first_ablation.py --json docs/results/first_ablation.json \
        --figure docs/images/first_ablation.png

Every cell serves the same requests with the same seeds in a fresh engine; cells are repeated in a
rotated order, and medians over repeats are kept. Needs the extra `plot` for the figure.
"""

import argparse
import dataclasses
import json
import platform
import statistics
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from interlock.conf.hydra_edge import compose
from interlock.core.assemble import build_engine
from interlock.driver.manifest import workload_hash
from interlock.driver.metrics import summarize
from interlock.driver.run import make_entries, serve

CACHES, DRAFTERS = ("none", "radix"), ("none", "ngram", "eagle")
BASE = ("attention=mla", "threads=1", "workload.rate=8")
FIGURES = ("mean_ttft_ms", "mean_tpot_ms", "output_throughput")


def run_cell(base: list[str], cache: str, drafter: str) -> dict[str, Any]:
    """One fresh engine over the workload."""
    config = compose([*base, f"cache={cache}", f"spec={drafter}"])
    config = dataclasses.replace(config, progress=False)
    engine = build_engine(config)
    entries = make_entries(config, engine)
    records = serve(engine, entries, progress=False)
    summary = summarize(records, engine.core.ledger)
    kept = (*FIGURES, "prefix_cache_hit_rate", "emitted_per_pass")
    tokens = [record.output_token_ids for record in records]
    return {k: summary[k] for k in kept} | {"workload": workload_hash(entries), "tokens": tokens}


def draw(cells: list[dict[str, Any]], path: Path) -> None:
    """Bars of TTFT and TPOT by drafter, one colour per cache."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(1, 2, figsize=(8, 3), layout="constrained")
    titles = {
        "mean_ttft_ms": "time to first token (ms)",
        "mean_tpot_ms": "time per output token (ms)",
    }
    for axis, (name, title) in zip(axes, titles.items(), strict=True):
        for place, cache in enumerate(CACHES):
            values = [c[name] for c in cells if c["cache"] == cache]
            at = [i + 0.38 * place for i in range(len(DRAFTERS))]
            bars = axis.bar(at, values, 0.36, label=f"cache={cache}")
            axis.bar_label(bars, fmt="%.3g", fontsize=8)
        axis.set_xticks([i + 0.19 for i in range(len(DRAFTERS))], [f"spec={d}" for d in DRAFTERS])
        axis.set_title(title, fontsize=10)
        axis.spines[["top", "right"]].set_visible(False)
    axes[0].legend(frameon=False, fontsize=8)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)


def main() -> None:
    """Run all cells, check that they are the same experiment, print, save, draw."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, help="write the numbers to this file")
    parser.add_argument("--figure", type=Path, help="draw the bars into this PNG")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--requests", type=int, default=32, help="of the workload")
    args = parser.parse_args()
    base = [*BASE, f"workload.num_requests={args.requests}"]
    plan = [(cache, drafter) for cache in CACHES for drafter in DRAFTERS]
    found: dict[tuple[str, str], list[dict[str, Any]]] = {cell: [] for cell in plan}
    with Progress() as progress:
        task = progress.add_task("serving", total=len(plan) * args.repeats)
        for repeat in range(args.repeats):
            for cell in plan[repeat % len(plan) :] + plan[: repeat % len(plan)]:
                found[cell].append(run_cell(base, *cell))
                progress.advance(task)
    every = [run for runs in found.values() for run in runs]
    assert len({run["workload"] for run in every}) == 1, "cells served different requests"
    plain = found["none", "none"][0]["tokens"]
    cells = []
    table = Table(
        "cache", "spec", "TTFT ms", "TPOT ms", "tokens/s", "hit rate", "per pass", "equal"
    )
    for (cache, drafter), runs in found.items():
        median = {name: statistics.median(run[name] for run in runs) for name in FIGURES}
        hits, passes = runs[0]["prefix_cache_hit_rate"], runs[0]["emitted_per_pass"]
        equal = sum(a == b for a, b in zip(runs[0]["tokens"], plain, strict=True))
        cells.append(
            {
                "cache": cache,
                "spec": drafter,
                **median,
                "hit_rate": hits,
                "emitted_per_pass": passes,
            }
            | {"requests_with_equal_tokens": equal}
        )
        table.add_row(
            cache, drafter, f"{median['mean_ttft_ms']:.0f}", f"{median['mean_tpot_ms']:.1f}",
            f"{median['output_throughput']:.0f}", f"{hits:.0%}", f"{passes:.2f}",
            f"{equal}/{len(plain)}",
        )  # fmt: skip
    Console().print(table)
    report = {
        "cells": cells,
        "base": base,
        "repeats": args.repeats,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "interlock": version("interlock"),
    }
    if args.json:
        args.json.write_text(json.dumps(report, indent=1) + "\n")
    if args.figure:
        draw(cells, args.figure)


if __name__ == "__main__":
    main()
