"""Random histories on every accepted combination of allocator, index and eviction policy.

    python benchmarks/cache_state_machines.py --operations 10000 \
        --json docs/results/cache_state_machines.json

Requests match, open, grow, write, index, fork, roll back and close on the real cache, without an
engine; after every operation pages, references, the indexed prefixes and the pool equation are
compared with dictionaries that are kept by brute force, every choice of a policy whose law is one
line with all its candidates, and memory with what is kept. Options with few values (key hashes,
parts of pages, aging) are combined as well. A violation ends its combination; exit 1.
"""

import argparse
import json
import platform
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import track

from interlock.core.registry import load_registry
from interlock.core.testing.cache_walk import LAP, CacheWalk, Combination, Lap


def run(walk: CacheWalk, one: Combination, operations: int, seed: int) -> tuple[list[Lap], str]:
    """So many operations in laps, and what was violated (empty: nothing)."""
    laps: list[Lap] = []
    while sum(lap.operations for lap in laps) < operations:
        left = operations - sum(lap.operations for lap in laps)
        try:
            laps.append(walk.run(one, min(LAP, left), seed + len(laps)))
        except Exception as error:
            return laps, f"seed {seed + len(laps)}: {type(error).__name__}: {error}"
    return laps, ""


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--operations", type=int, default=10_000, help="on every combination")
    parser.add_argument("--seed", type=int, default=0, help="of the first lap of each")
    parser.add_argument("--json", type=Path, help="write the result here")
    parser.add_argument("--only", default="", metavar="TEXT",
                        help="combinations whose name has this in it")  # fmt: skip
    arguments = parser.parse_args()
    console, begin_s = Console(), time.perf_counter()
    walk, totals = CacheWalk(load_registry()), Counter[str]()
    violations: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as folder:
        every = walk.combinations(Path(folder))
        combinations = [one for one in every if arguments.only in str(one)]
        if not combinations:
            parser.error(f"--only {arguments.only}: no such combination; one is: {every[0]}")
        for one in track(combinations, "walking", console=console):
            laps, violated = run(walk, one, arguments.operations, arguments.seed)
            for lap in laps:
                totals.update(
                    operations=lap.operations, evicted_pages=lap.evicted_pages, hits=lap.hits
                )
            totals["milliseconds"] += round(sum(lap.seconds for lap in laps) * 1e3)
            if violated:
                violations[str(one)] = violated
    report: dict[str, Any] = {
        "combinations": len(combinations),
        "refused": walk.refused,
        "operations_each": arguments.operations,
        "operations": totals["operations"],
        "violations": violations,
        "evicted_pages": totals["evicted_pages"],
        "hits": totals["hits"],
        "operations_per_s": round(1e3 * totals["operations"] / max(1, totals["milliseconds"])),
        "seconds": round(time.perf_counter() - begin_s, 1),
        "python": platform.python_version(),
        "seed": arguments.seed,
    }
    console.print_json(json.dumps(report))
    if arguments.json:
        arguments.json.write_text(json.dumps(report, indent=1) + "\n")
    sys.exit(bool(violations))


if __name__ == "__main__":
    main()
