"""The disk tier beside plain files: the same sizes, threads and rule of syncing, in turns.

    python benchmarks/tier_disk.py --json docs/results/tier_disk.json

A plain write is open, write, (fdatasync,) close of one file; a plain read is open, read into a
buffer that is there, close. The tier adds a checksum, a header, the rename, an account with an
order of use, and a worker thread with a bound on the time. Rounds alternate, each in an empty
folder, after a sync; rates are payload bytes over the time until all threads are done, ratios are
medians of those of neighbouring rounds. Reads find the files in the page cache. `full`: the tier is
full and evicts one entry for each it takes; plain files are replaced (deleted and written).
"""

import argparse
import json
import os
import platform
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from hashlib import blake2b
from pathlib import Path
from typing import Any

from interlock.plugins.cache.tiers import DiskTierConfig
from interlock.plugins.cache.tiers.disk import DiskTier
from interlock.plugins.cache.tiers.disk_files import TierFolder
from interlock.plugins.cache.tiers.envelope import HEADER

CASES = (  # payload bytes, files, sync
    (64 << 10, 2000, False),
    (737_280, 300, False),  # a page of 16 tokens of SmolLM2-135M in fp32
    (4 << 20, 60, False),
    (737_280, 60, True),
    (4 << 20, 20, True),
)
STAGES = ("write", "read", "full")


def in_threads(threads: int, items: Sequence[int], each: Callable[[int], None]) -> float:
    """Seconds until `each` was called with every item, a share of them in each thread."""

    def share(first: int) -> None:
        for item in items[first::threads]:
            each(item)

    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(lambda _: None, range(threads)))
        begun_s = time.perf_counter()
        for done in [pool.submit(share, first) for first in range(threads)]:
            done.result()
        return time.perf_counter() - begun_s


def plain_round(folder: Path, case: tuple[int, int, bool], threads: int) -> dict[str, float]:
    """Stage -> seconds, with files of the tier's size and nothing else."""
    size, files, sync = case
    content = os.urandom(size + HEADER.size)
    buffers = {}

    def write(item: int) -> None:
        path = folder / f"{item % 256:02x}" / str(item)
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        written = os.write(file, content)
        if sync:
            os.fdatasync(file)
        os.close(file)
        assert written == len(content)

    def read(item: int) -> None:
        buffer = buffers.setdefault(item % threads, bytearray(len(content)))
        file = os.open(folder / f"{item % 256:02x}" / str(item), os.O_RDONLY)
        count = os.readv(file, [buffer])
        os.close(file)
        assert count == len(content)

    def replace(item: int) -> None:
        (folder / f"{item % 256:02x}" / str(item)).unlink()
        write(item)

    for shard in range(256):
        (folder / f"{shard:02x}").mkdir()
    run = {"write": write, "read": read, "full": replace}
    return {stage: in_threads(threads, range(files), run[stage]) for stage in STAGES}


def tier_round(folder: Path, case: tuple[int, int, bool], threads: int) -> dict[str, float]:
    """Stage -> seconds through the tier; every call must succeed."""
    size, files, sync = case
    mib = -(-size * files >> 20)
    config = DiskTierConfig(directory=str(folder), capacity_mib=mib, threads=threads, sync=sync)
    store = DiskTier(TierFolder(str(folder), "0" * 16), config, 60.0)
    room = store.capacity_bytes // size
    keys = [blake2b(str(item).encode(), digest_size=32).digest() for item in range(files + room)]
    content = memoryview(os.urandom(size))
    buffers = {}

    def write(item: int) -> None:
        assert store.write(keys[item], content)

    def read(item: int) -> None:
        buffer = buffers.setdefault(item % threads, memoryview(bytearray(size)))
        assert store.read(keys[item], buffer)

    seconds = {"write": in_threads(threads, range(files), write)}
    seconds["read"] = in_threads(threads, range(files), read)
    for item in range(files, room):
        write(item)
    seconds["full"] = in_threads(threads, range(room, room + files), write)
    assert not store.failures
    store.close()
    return seconds


def measure(case: tuple[int, int, bool], threads: int, rounds: int, where: Path) -> dict[str, Any]:
    """Rates and ratios of one case."""
    size, files, sync = case
    seconds: dict[str, list[dict[str, float]]] = {"plain": [], "tier": []}
    for turn in range(rounds):
        order = ("plain", "tier") if turn % 2 == 0 else ("tier", "plain")
        for kind in order:
            folder = Path(tempfile.mkdtemp(dir=where))
            os.sync()
            run = plain_round if kind == "plain" else tier_round
            seconds[kind].append(run(folder, case, threads))
            shutil.rmtree(folder)
    row: dict[str, Any] = {"payload_bytes": size, "files": files, "sync": sync, "threads": threads}
    for stage in STAGES:
        pairs = [(p[stage], t[stage]) for p, t in zip(*seconds.values(), strict=True)]
        ratios = sorted(plain / tier for plain, tier in pairs)
        row[stage] = {
            "plain_mb_per_s": round(statistics.median(size * files / p / 1e6 for p, _ in pairs), 1),
            "tier_mb_per_s": round(statistics.median(size * files / t / 1e6 for _, t in pairs), 1),
            "of_plain": round(statistics.median(ratios), 3),
            "of_plain_low": round(ratios[0], 3),
            "of_plain_high": round(ratios[-1], 3),
        }
    return row


def main() -> None:
    """Print and record one row for each case."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--scale", type=float, default=1.0, help="times the files of a case")
    parser.add_argument("--where", type=Path, default=Path(tempfile.gettempdir()))
    parser.add_argument("--json", type=Path, help="write the results to this file")
    args = parser.parse_args()
    rows = []
    for size, files, sync in CASES:
        case = (size, max(2, round(files * args.scale)), sync)
        rows.append(measure(case, args.threads, args.rounds, args.where))
        parts = [
            f"{stage} {rows[-1][stage]['tier_mb_per_s']:7.0f} of "
            f"{rows[-1][stage]['plain_mb_per_s']:7.0f} MB/s ({rows[-1][stage]['of_plain']:.0%})"
            for stage in STAGES
        ]
        print(f"{size:8} bytes{', synced' if sync else '':8}: " + "; ".join(parts))
    if args.json:
        report = {"python": platform.python_version(), "rounds": args.rounds, "rows": rows}
        args.json.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
