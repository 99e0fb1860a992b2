"""How far each family is from transformers in fp32, bf16 and fp16, token by token.

    python -m benchmarks.model_families --json docs/results/model_families.json \
        --page docs/results/model_families.md

Tiny random checkpoints, 33 prompt and 32 greedy tokens each; how differences are excused is in
tests/models/low_precision.py.
"""

import argparse
import json
import platform
import sys
import tempfile
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table

sys.path.insert(0, str(Path(__file__).parents[1]))  # started as a file or as a module

from benchmarks.beside import needs

if __name__ == "__main__":
    needs.packages("test", "transformers")

from tests.models.low_precision import BOUNDS, Comparison, compare
from tests.models.oracle import SHAPES

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
COLUMNS = (
    "shape", "dtype", "largest difference", "our error", "their error", "tokens", "expert choices",
)  # fmt: skip


def cells(shape: str, dtype: str, found: Comparison) -> tuple[str, ...]:
    """One row of the table."""
    equal = found.tokens - found.excused_tokens
    choices = "-"
    if found.choices:
        choices = f"{found.choices - found.excused_choices} of {found.choices}"
    numbers = (found.largest_difference, found.our_error, found.their_error)
    return shape, dtype, *(f"{n:.2g}" for n in numbers), f"{equal} of {found.tokens}", choices


def page(rows: list[tuple[str, ...]]) -> str:
    """The table as a Markdown page."""
    bounds = "; ".join(
        f"{name} {BOUNDS[dtype].logits} ({BOUNDS[dtype].router})" for name, dtype in DTYPES.items()
    )
    lines = [
        "# Model families against transformers",
        "",
        "Tiny random checkpoints of every supported architecture, written, read and continued "
        "greedily by transformers and by Interlock in the same dtype (33 prompt tokens, then "
        "`tokens`). Largest difference: between any two logits of the two. Errors: root mean "
        "square distance of the logits from fp64 on the same routing, ours and that of "
        "transformers. Tokens and choices of experts that are equal; each other one is excused: "
        "the reference's margin there is at most twice the bound of a logit. Bounds, with those "
        f"of routers: {bounds}.",
        "",
        "`python -m benchmarks.model_families --json docs/results/model_families.json --page "
        "docs/results/model_families.md`",
        "",
        f"| {' | '.join(COLUMNS)} |",
        f"|{'---|' * len(COLUMNS)}",
        *(f"| {' | '.join(row)} |" for row in rows),
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Print the table; write it where asked. Ends with 1 if a difference has no excuse."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=32, help="greedy tokens a checkpoint")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--page", type=Path)
    parser.add_argument("--shapes", nargs="+", choices=SHAPES, default=list(SHAPES), metavar="NAME")
    parser.add_argument("--dtypes", nargs="+", choices=DTYPES, default=list(DTYPES))
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows: list[tuple[str, ...]] = []
    results: list[dict[str, Any]] = []
    jobs = [(shape, dtype) for shape in options.shapes for dtype in options.dtypes]
    for shape, dtype in track(jobs, console=Console(stderr=True), transient=True):
        with tempfile.TemporaryDirectory() as directory:
            found = compare(shape, DTYPES[dtype], Path(directory), options.tokens)
        rows.append(cells(shape, dtype, found))
        results.append({"shape": shape, "dtype": dtype, **asdict(found)})
    table = Table(*COLUMNS)
    for row in rows:
        table.add_row(*row)
    Console().print(table)
    packages = ("torch", "transformers")
    run = {"machine": platform.processor(), **{name: version(name) for name in packages}}
    if options.json:
        options.json.write_text(json.dumps({"run": run, "results": results}, indent=1) + "\n")
    if options.page:
        options.page.write_text(page(rows))
    problems = [f"{one['shape']} {one['dtype']}: {p}" for one in results for p in one["problems"]]
    sys.exit("\n".join(problems) or 0)


if __name__ == "__main__":
    main()
