"""The command that walks compositions and prints what was refused, run and exact.

python -m interlock.core.testing.walk --full --jobs 2 --json walk.json
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
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import track

from interlock.core.testing.coverage import Cell
from interlock.core.testing.exactness import (
    MODELS,
    REFERENCE,
    VERIFIER,
    Outcome,
    Walk,
    cells,
    drawing_cells,
    verifier_cells,
)

VERIFIERS_SHARE = 5
"""One of so many cells of a sample has drawn candidates and any verifier."""
_walk: Walk | None = None


def main() -> None:
    """Parse arguments, run the cells, print the table; exit 1 if any cell differed."""
    parser = argparse.ArgumentParser(
        description="Compare accepted compositions with the reference, token for token, in fp64."
    )
    parser.add_argument("--full", action="store_true", help="the full product, not all pairs")
    parser.add_argument(
        "--sample",
        type=int,
        metavar="N",
        help="N cells, drawn with seed 0: of the full product, and of drawn drafts by verifier",
    )
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
        chosen, refused = cells(_walk, args.full or args.sample is not None)
        drawn = verifier_cells(_walk, chosen, len(MODELS)) + drawing_cells(_walk, chosen)
        accepted = len(chosen) + len(drawn)
        if args.sample is not None:
            drawn = _some(drawn, args.sample // VERIFIERS_SHARE)
            chosen = _some(chosen, args.sample - len(drawn))
        chosen += drawn
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
        "accepted": accepted,
        "accepted_run": len(outcomes),
        "exact": len(outcomes) - len(wrong),
        "run_by_drafts": dict(sorted(Counter(o.cell["spec"] for o in outcomes).items())),
        "run_by_verifier": dict(
            sorted(Counter(o.cell.get(VERIFIER, REFERENCE[VERIFIER]) for o in outcomes).items())
        ),
        "refused": sum(refused.values()),
        "refused_by_reason": dict(refused.most_common()),
        "activity": dict(activity),
        "seconds": round(time.perf_counter() - start_s, 1),
        "versions": {"python": platform.python_version(), "torch": torch.__version__},
        "wrong": [{"cell": o.cell, "differences": o.differences} for o in wrong],
    }
    console.print_json(json.dumps({k: v for k, v in report.items() if k != "wrong"}))
    if args.json:
        args.json.write_text(json.dumps(report, indent=1) + "\n")
    raise SystemExit(bool(wrong))


def _some(chosen: list[Cell], count: int) -> list[Cell]:
    return random.Random(0).sample(chosen, min(count, len(chosen)))


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
