"""The disk tier beside plain files: the same sizes, threads and rule of syncing, in turns.

    python benchmarks/tier_disk.py --json docs/results/tier_disk.json

A plain write is open, write, (fdatasync,) close of one file; a plain read is open, read into a
buffer that is there, close. The tier adds a checksum, a header, the rename, an account with an
order of use, and worker threads with a bound on the time. `tier` is given 16 entries or 8 MiB a
call, as an engine gives them; `one` a single one, so that no other hides its way to a worker and
back.
Both have as many workers as the plain files have threads.

Rounds alternate, each after a sync in an own new folder with its 256 folders made; they are deleted
at the end of a case, because ext4 looks for long where files were deleted lately. Rates are payload
bytes over the time until all threads are done, ratios are medians of those of neighbouring rounds.
Reads find the files in the page cache. `full`: the tier is full, and one entry goes for each that
it takes; plain files are replaced (deleted and written).
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
KINDS = ("plain", "tier", "one")
SPACE = "0" * 16


def in_threads(
    threads: int, items: Sequence[int], at_once: int, each: Callable[[Sequence[int]], None]
) -> float:
    """Seconds until `each` was called with every item, `at_once` of a thread's share at a time."""

    def share(first: int) -> None:
        mine = items[first::threads]
        for begin in range(0, len(mine), at_once):
            each(mine[begin : begin + at_once])

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
    buffers = [bytearray(content) for _ in range(threads)]

    def write(items: Sequence[int]) -> None:
        (item,) = items
        path = folder / f"{item % 256:02x}" / str(item)
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        written = os.write(file, content)
        if sync:
            os.fdatasync(file)
        os.close(file)
        assert written == len(content)

    def read(items: Sequence[int]) -> None:
        (item,) = items
        buffer = buffers[item % threads]
        file = os.open(folder / f"{item % 256:02x}" / str(item), os.O_RDONLY)
        count = os.readv(file, [buffer])
        os.close(file)
        assert count == len(content)

    def replace(items: Sequence[int]) -> None:
        (item,) = items
        (folder / f"{item % 256:02x}" / str(item)).unlink()
        write(items)

    make_shards(folder)
    run = {"write": write, "read": read, "full": replace}
    return {stage: in_threads(threads, range(files), 1, run[stage]) for stage in STAGES}


def make_shards(folder: Path) -> None:
    """The folders that files are spread over."""
    for shard in range(256):
        (folder / f"{shard:02x}").mkdir(parents=True)


def tier_round(
    folder: Path, case: tuple[int, int, bool], threads: int, at_once: int
) -> dict[str, float]:  # fmt: skip
    """Stage -> seconds through the tier, `at_once` entries a call; every one must succeed."""
    size, files, sync = case
    mib = -(-size * files >> 20)
    config = DiskTierConfig(directory=str(folder), capacity_mib=mib, threads=threads, sync=sync)
    make_shards(folder / SPACE)
    store = DiskTier(TierFolder(str(folder), SPACE), config, 60.0)
    room = store.capacity_bytes // size
    keys = [blake2b(str(item).encode(), digest_size=32).digest() for item in range(files + room)]
    content = memoryview(os.urandom(size))
    buffers = [[memoryview(bytearray(content)) for _ in range(at_once)] for _ in range(threads)]

    def write(items: Sequence[int]) -> None:
        if at_once == 1:
            assert store.write(keys[items[0]], content)
        else:
            assert all(store.write_many([keys[i] for i in items], [content] * len(items)))

    def read(items: Sequence[int]) -> None:
        into = buffers[items[0] % threads]
        if at_once == 1:
            assert store.read(keys[items[0]], into[0])
        else:
            wanted = [keys[i] for i in items]
            assert store.read_many(wanted, into[: len(items)]) == len(items)

    seconds = {"write": in_threads(threads, range(files), at_once, write)}
    seconds["read"] = in_threads(threads, range(files), at_once, read)
    in_threads(1, range(files, room), at_once, write)
    seconds["full"] = in_threads(threads, range(room, room + files), at_once, write)
    assert not store.failures
    store.close()
    return seconds


def measure(case: tuple[int, int, bool], threads: int, rounds: int, where: Path) -> dict[str, Any]:
    """Rates and ratios of one case."""
    size, files, sync = case
    seconds: dict[str, list[dict[str, float]]] = {kind: [] for kind in KINDS}
    folders = []
    for turn in range(rounds):
        for kind in KINDS[:: 1 if turn % 2 == 0 else -1]:
            folders.append(Path(tempfile.mkdtemp(dir=where)))
            os.sync()
            if kind == "plain":
                seconds[kind].append(plain_round(folders[-1], case, threads))
            else:
                many = max(1, min(DiskTier.at_once, (8 << 20) // size)) if kind == "tier" else 1
                seconds[kind].append(tier_round(folders[-1], case, threads, many))
    for folder in folders:
        shutil.rmtree(folder)
    row: dict[str, Any] = {"payload_bytes": size, "files": files, "sync": sync, "threads": threads}
    for stage in STAGES:
        taken = {kind: [each[stage] for each in seconds[kind]] for kind in KINDS}
        row[stage] = {
            f"{kind}_mb_per_s": round(size * files / 1e6 / statistics.median(taken[kind]), 1)
            for kind in KINDS
        }
        for kind in ("tier", "one"):
            ratios = sorted(p / t for p, t in zip(taken["plain"], taken[kind], strict=True))
            row[stage][f"{kind}_of_plain"] = round(statistics.median(ratios), 3)
            row[stage][f"{kind}_of_plain_range"] = [round(ratios[i], 3) for i in (0, -1)]
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
            f"{stage} {row['tier_mb_per_s']:7.0f} of {row['plain_mb_per_s']:7.0f} MB/s "
            f"({row['tier_of_plain']:.0%}, one a call {row['one_of_plain']:.0%})"
            for stage, row in ((stage, rows[-1][stage]) for stage in STAGES)
        ]
        print(f"{size:8} bytes{', synced' if sync else '':8}: " + "; ".join(parts))
    if args.json:
        report = {"python": platform.python_version(), "rounds": args.rounds, "rows": rows}
        args.json.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
