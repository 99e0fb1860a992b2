"""The command that walks compositions and prints what was refused, run and exact.

python -m interlock.core.testing.walk --full --jobs 2 --json walk.json
"""

import argparse
import json
import random
import tempfile
import time
import traceback
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from rich.console import Console
from rich.progress import track

from interlock.core.testing.coverage import Cell
from interlock.core.testing.exactness import MODELS, Outcome, Walk, cells, verifier_cells

_walk: Walk | None = None


def main() -> None:
    """Parse arguments, run the cells, print the table; exit 1 if any cell differed."""
    parser = argparse.ArgumentParser(
        description="Compare accepted compositions with the reference, token for token, in fp64."
    )
    parser.add_argument("--full", action="store_true", help="the full product, not all pairs")
    parser.add_argument(
        "--sample", type=int, metavar="N", help="N cells of the full product, drawn with seed 0"
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
        chosen += verifier_cells(_walk, chosen, len(MODELS))
        accepted = len(chosen)
        if args.sample is not None:
            chosen = random.Random(0).sample(chosen, min(args.sample, accepted))
        with ProcessPoolExecutor(args.jobs, initializer=_prepare, initargs=(folder,)) as pool:
            results = pool.map(_run, chosen, chunksize=4)
            outcomes = list(track(results, "walking", total=len(chosen), console=console))
    wrong = [outcome for outcome in outcomes if outcome.differences]
    activity: Counter[str] = sum((outcome.activity for outcome in outcomes), Counter())
    for outcome in wrong[:20]:
        console.print(outcome.cell, outcome.differences[:3], markup=False)
    report = {
        "accepted": accepted,
        "accepted_run": len(outcomes),
        "exact": len(outcomes) - len(wrong),
        "refused": sum(refused.values()),
        "refused_by_reason": dict(refused.most_common()),
        "activity": dict(activity),
        "seconds": round(time.perf_counter() - start_s, 1),
        "wrong": [{"cell": o.cell, "differences": o.differences} for o in wrong],
    }
    console.print_json(json.dumps({k: v for k, v in report.items() if k != "wrong"}))
    if args.json:
        args.json.write_text(json.dumps(report, indent=1) + "\n")
    raise SystemExit(bool(wrong))


def _prepare(folder: str) -> None:
    global _walk
    _walk = Walk(Path(folder))


def _run(cell: Cell) -> Outcome:
    assert _walk is not None
    try:
        return _walk.run(cell)
    except Exception:
        return Outcome(cell, [traceback.format_exc(limit=-3)])


if __name__ == "__main__":
    main()
