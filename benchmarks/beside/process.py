"""Sides as processes that are stopped while another one is measured.

Idle threads of OpenMP spin for a while, and two processes share two cores: a side runs only while
it answers a command, and is stopped by SIGSTOP otherwise.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

WORKER = Path(__file__).with_name("worker.py")


class SideError(RuntimeError):
    """A side that could not start or failed at a command."""


class SideProcess:
    """One side. Use as a context manager; `call` runs a command, alone among the sides."""

    def __init__(
        self,
        name: str,
        model: Path,
        dtype: str,
        threads: int,
        options: tuple[str, ...] = (),
        python: str = sys.executable,
    ) -> None:
        self.name = name
        self.log = tempfile.TemporaryFile("w+")
        environment = dict(os.environ)
        environment["OMP_NUM_THREADS"] = str(threads)
        if python != sys.executable:
            environment.pop("PYTHONPATH", None)
        start_s = time.perf_counter()
        self.process = subprocess.Popen(
            [python, str(WORKER), name, str(model), dtype, str(threads), *options],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.log,
            text=True, env=environment, start_new_session=True,
        )  # fmt: skip
        self.facts: dict[str, Any] = self._answer()
        self.start_s = time.perf_counter() - start_s
        self._send(signal.SIGSTOP)

    def call(self, method: str, *arguments: Any) -> Any:
        """The result of one command; the process is stopped before and after it."""
        assert self.process.stdin is not None
        self._send(signal.SIGCONT)
        self.process.stdin.write(json.dumps([method, *arguments]) + "\n")
        self.process.stdin.flush()
        result = self._answer()
        self._send(signal.SIGSTOP)
        return result

    def _answer(self) -> Any:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        answer = json.loads(line) if line else {"error": "the process ended"}
        if "error" in answer:
            self.process.wait()
            self.log.seek(0)
            tail = "\n".join(self.log.read().splitlines()[-12:])
            raise SideError(f"{self.name}: {answer['error']}\n--- end of its log:\n{tail}")
        return answer["result"]

    def _send(self, sent: signal.Signals) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, sent)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._send(signal.SIGKILL)
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout, self.log):
            if stream is not None:
                stream.close()
