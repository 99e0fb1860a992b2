"""The command that walks compositions and prints what was refused, run and exact.

python -m interlock.core.testing.walk --sample 400 --seconds 900 --json walk.json
"""

import argparse
import json
import math
import platform
import random
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import track

from interlock.core.testing.coverage import Cell
from interlock.core.testing.exactness import (
    DEFAULT_VERIFIER,
    MODELS,
    TIER,
    VERIFIER,
    Outcome,
    Walk,
)
from interlock.core.testing.walked_cells import (
    Drawn,
    all_pairs,
    draw,
    drawing_cells,
    product_size,
    verifier_cells,
)

VERIFIERS_SHARE = 5
"""One of so many cells of a sample has drawn candidates and any verifier."""
LEAST_DRAWN = 600
"""Cells drawn to choose those from, at least."""
_walk: Walk | None = None


def main() -> None:
    """Parse arguments, run the cells, print the table; exit 1 if any cell differed."""
    parser = argparse.ArgumentParser(
        description="Compare accepted compositions with the reference, token for token, in fp64."
    )
    parser.add_argument(
        "--sample",
        type=int,
        metavar="N",
        help="N cells, drawn at random: of the product of all choices, and of drawn drafts by "
        "verifier; without it all pairs of choices",
    )
    parser.add_argument("--seed", type=int, default=0, help="of the draws of --sample (default: 0)")
    parser.add_argument(
        "--seconds", type=float, default=math.inf, help="begin no cell later than this"
    )
    parser.add_argument("--jobs", type=int, default=1, help="processes (default: 1)")
    parser.add_argument("--json", type=Path, help="write the result to this file")
    args = parser.parse_args()
    console = Console()
    start_s = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        _prepare(folder)
        assert _walk is not None
        if args.sample is None:
            drawn = all_pairs(_walk)
        else:
            drawn = draw(_walk, max(LEAST_DRAWN, args.sample), args.seed)
        product = product_size(_walk)
        chosen = _chosen(_walk, drawn, args.sample)
        random.Random(0).shuffle(chosen)  # the first ones stand for all
        end_s = time.time() + args.seconds
        with ProcessPoolExecutor(args.jobs, initializer=_prepare, initargs=(folder,)) as pool:
            results = pool.map(partial(_run, end_s), chosen, chunksize=4)
            found = list(track(results, "walking", total=len(chosen), console=console))
    outcomes = [outcome for outcome in found if outcome is not None]
    wrong = [outcome for outcome in outcomes if outcome.differences]
    activity: Counter[str] = sum((outcome.activity for outcome in outcomes), Counter())
    for outcome in wrong[:20]:
        console.print(outcome.cell, outcome.differences[:3], markup=False)
    report = {
        "cells": product,
        "drawn": drawn.considered,
        "accepted": drawn.accepted,
        "run": len(outcomes),
        "exact": len(outcomes) - len(wrong),
        "run_by_drafts": _counted(outcomes, "spec", "none"),
        "run_by_verifier": _counted(outcomes, VERIFIER, DEFAULT_VERIFIER),
        "run_by_tiers": _counted(outcomes, TIER, "none"),
        "refused_by_reason": dict(drawn.refused.most_common()),
        "activity": dict(activity),
        "seconds": round(time.perf_counter() - start_s, 1),
        "versions": {"python": platform.python_version(), "torch": torch.__version__},
        "wrong": [{"cell": o.cell, "differences": o.differences} for o in wrong],
    }
    console.print_json(json.dumps({k: v for k, v in report.items() if k != "wrong"}))
    if args.json:
        args.json.write_text(json.dumps(report, indent=1) + "\n")
    raise SystemExit(bool(wrong))


def _chosen(walk: Walk, drawn: Drawn, sample: int | None) -> list[Cell]:
    """What to run of the drawn cells and, made from them, of cells with each verifier."""
    verifying = verifier_cells(walk, drawn.cells, len(MODELS)) + drawing_cells(walk, drawn.cells)
    if sample is None:
        return drawn.cells + verifying
    verifying = random.Random(0).sample(verifying, min(sample // VERIFIERS_SHARE, len(verifying)))
    return drawn.cells[: sample - len(verifying)] + verifying


def _counted(outcomes: Sequence[Outcome], factor: str, default: str) -> dict[str, int]:
    """How many ran with each level of a factor."""
    return dict(sorted(Counter(o.cell.get(factor, default) for o in outcomes).items()))


def _prepare(folder: str) -> None:
    global _walk
    _walk = Walk(Path(folder))


def _run(end_s: float, cell: Cell) -> Outcome | None:
    """What a cell did; None if there was no time for it."""
    assert _walk is not None
    if time.time() > end_s:
        return None
    try:
        return _walk.run(cell)
    except Exception:
        return Outcome(cell, [traceback.format_exc(limit=-3)])


if __name__ == "__main__":
    main()
