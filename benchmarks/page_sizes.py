"""Small pages waste fewer slots, large ones move faster: both sides of the page size, 1 to 512.

    python benchmarks/page_sizes.py --json docs/results/page_sizes.json \\
        --figure docs/images/page_sizes.png

Waste: the lengths of ShareGPT conversations (INTERLOCK_DATA/traces/sharegpt_lengths.csv.gz, default
../shared/data; --lengths FILE) or, without the file, log-normal ones. A request holds the pages of
its rows at each of its decode steps; counted over all steps, `reserved` slots are filled later and
`internal` ones never (Kwon et al., SOSP 2023, figure 2). Beside it what reserving one run of slots
wastes: of 2,048 slots (the paper's "Max") and of the next power of two of the final length.

Transfer: the pages of 4,096 tokens, from random places of every plane into one buffer, as a tier
moves them; a copy operation is one page of one plane (SmolLM2-135M: 3 heads of 64 in bf16). The
throughput is a median of rounds in which the sizes take turns, beside one copy of the same bytes
in one piece.
"""

import argparse
import csv
import gzip
import json
import os
import platform
import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
RESERVED_RUN = 2048
PLANES, ROW_BYTES = 60, 3 * 64 * 2
MOVED_TOKENS, POOL_TOKENS = 4096, 16384

Lengths = NDArray[np.int64]


def read_lengths(path: Path, most: int) -> tuple[str, Lengths, Lengths]:
    """Where the lengths are from, prompt and output tokens of each request."""
    if path.exists():
        with gzip.open(path, "rt", newline="") as file:
            rows = [
                (int(row["ContextTokens"]), int(row["GeneratedTokens"]))
                for row in csv.DictReader(file)
            ]
        prompts, outputs = np.array(rows[:most], dtype=np.int64).T
        name = path.name
    else:
        random = np.random.default_rng(0)
        prompts = np.ceil(random.lognormal(4.0, 1.5, most)).astype(np.int64)
        outputs = np.ceil(random.lognormal(5.4, 0.9, most)).astype(np.int64)
        name = f"log-normal ({path} is absent)"
    fit = (outputs > 0) & (prompts > 0) & (prompts + outputs <= RESERVED_RUN)
    return name, prompts[fit], outputs[fit]


def waste(prompts: Lengths, outputs: Lengths, page_size: int) -> dict[str, float]:
    """Shares of the slots held, over all decode steps of all requests."""
    last = prompts + outputs - 1
    rows = np.concatenate([np.arange(p, e + 1) for p, e in zip(prompts, last, strict=True)])
    ends = np.repeat(last, outputs)
    slots = -(-rows // page_size) * page_size
    used = np.minimum(slots, ends)
    held = int(slots.sum())
    return {
        "tokens": float(rows.sum() / held),
        "reserved": float((used - rows).sum() / held),
        "internal": float((slots - used).sum() / held),
    }


def waste_of_runs(prompts: Lengths, outputs: Lengths) -> dict[str, float]:
    """Share of the slots without a token where each request has one run of slots."""
    last = prompts + outputs - 1
    tokens = int(((prompts + last) * outputs).sum()) // 2
    rounded = 2 ** np.ceil(np.log2(last)).astype(np.int64)
    return {
        "run of 2,048 slots": 1 - tokens / int(RESERVED_RUN * outputs.sum()),
        "run of a power of two": 1 - tokens / int((rounded * outputs).sum()),
    }


def measure_copies(rounds: int) -> dict[int, float]:
    """Bytes per second of moving MOVED_TOKENS by page size; size 0: in one piece."""
    planes = torch.empty(PLANES, POOL_TOKENS * ROW_BYTES, dtype=torch.uint8)
    planes.random_(generator=torch.Generator().manual_seed(0))
    buffer = torch.empty(PLANES, MOVED_TOKENS * ROW_BYTES, dtype=torch.uint8)
    random = np.random.default_rng(0)
    pages = {
        size: torch.from_numpy(random.permutation(POOL_TOKENS // size)[: MOVED_TOKENS // size])
        for size in SIZES
    }
    times: dict[int, list[float]] = {size: [] for size in (0, *SIZES)}
    for turn in range(rounds + 1):
        for size, taken in times.items():
            begin_s = time.perf_counter()
            for plane, target in zip(planes, buffer, strict=True):
                if size == 0:
                    target.copy_(plane[: len(target)])
                else:
                    view = plane.view(POOL_TOKENS // size, size * ROW_BYTES)
                    torch.index_select(view, 0, pages[size], out=target.view(-1, size * ROW_BYTES))
            if turn:  # the first one warms up
                taken.append(time.perf_counter() - begin_s)
    return {size: buffer.numel() / statistics.median(taken) for size, taken in times.items()}


def draw(cells: list[dict[str, Any]], path: Path) -> None:
    """Slots without a token, and throughput, over the page size."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(8, 3), layout="constrained")
    sizes = [cell["page_size"] for cell in cells]
    internal = [100 * cell["internal"] for cell in cells]
    both = [100 * (cell["internal"] + cell["reserved"]) for cell in cells]
    left.plot(sizes, both, marker="o", label="internal + filled later")
    left.plot(sizes, internal, marker="o", label="internal")
    left.set_ylabel("% of the slots held")
    left.legend(frameon=False, fontsize=8)
    right.plot(sizes, [100 * cell["of_one_copy"] for cell in cells], marker="o")
    right.set_ylabel("% of one copy's throughput")
    right.set_ylim(0)
    titles = (left, "slots without a token"), (right, "gathering 4,096 tokens from pages")
    for axis, title in titles:
        axis.set_title(title, fontsize=10)
        axis.set_xscale("log", base=2)
        axis.set_xticks(sizes, [str(size) for size in sizes])
        axis.set_xlabel("page size (tokens)")
        axis.spines[["top", "right"]].set_visible(False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)


def main() -> None:
    """Measure, print and write."""
    data = Path(os.environ.get("INTERLOCK_DATA", "../shared/data"))
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    lengths = data / "traces" / "sharegpt_lengths.csv.gz"
    parser.add_argument("--lengths", type=Path, default=lengths, help="where requests are from")
    parser.add_argument("--requests", type=int, default=10_000, help="leading requests that count")
    parser.add_argument("--rounds", type=int, default=9, help="timed rounds of every size")
    parser.add_argument("--json", type=Path, help="write the results here")
    parser.add_argument("--figure", type=Path, help="draw them here (needs matplotlib)")
    arguments = parser.parse_args()
    name, prompts, outputs = read_lengths(arguments.lengths, arguments.requests)
    speeds = measure_copies(arguments.rounds)
    cells = [
        {
            "page_size": size,
            **waste(prompts, outputs, size),
            "bytes_per_copy": size * ROW_BYTES,
            "copies": PLANES * MOVED_TOKENS // size,
            "bytes_per_s": speeds[size],
            "of_one_copy": speeds[size] / speeds[0],
        }
        for size in SIZES
    ]
    runs = waste_of_runs(prompts, outputs)
    table = Table("page size", "internal", "filled later", "bytes a copy", "GB/s", "of one copy")
    for cell in cells:
        shares = (f"{cell[key]:.2%}" for key in ("internal", "reserved"))
        speed = f"{cell['bytes_per_s'] / 1e9:.2f}", f"{cell['of_one_copy']:.0%}"
        table.add_row(f"{cell['page_size']}", *shares, f"{cell['bytes_per_copy']:,}", *speed)
    console = Console()
    console.print(table)
    for kind, share in runs.items():
        console.print(f"{kind}: {share:.1%} of the slots hold no token")
    if arguments.json:
        found = {
            "lengths": name, "requests": len(prompts), "planes": PLANES, "row_bytes": ROW_BYTES,
            "moved_tokens": MOVED_TOKENS, "threads": torch.get_num_threads(),
            "one_copy_bytes_per_s": speeds[0], "waste_of_runs": runs, "cells": cells,
            "torch": torch.__version__, "machine": platform.processor() or platform.machine(),
        }  # fmt: skip
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
        arguments.json.write_text(json.dumps(found, indent=2) + "\n")
    if arguments.figure:
        draw(cells, arguments.figure)


if __name__ == "__main__":
    main()
