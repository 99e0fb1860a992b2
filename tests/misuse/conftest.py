"""The command line in this process, on a tiny model, as a user types it."""

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from interlock.core.registry import load_registry
from interlock.core.testing.tiny import write_tiny_checkpoint
from interlock.core.testing.tiny_eagle import write_tiny_eagle
from interlock.driver import cli

SHORT = (
    "progress=false",
    "threads=1",
    "workload.num_requests=3",
    "workload.prompt_tokens=12",
    "workload.prefix_tokens=8",
    "workload.output_tokens=4",
    "workload.arrivals=at_once",
)
"""Overrides for a synthetic workload of milliseconds."""


@dataclass(frozen=True)
class Ran:
    """What a command did. `folder` is the run's, `problems` the lines of its refusal."""

    status: int
    out: str
    err: str
    folder: Path

    @property
    def problems(self) -> list[str]:
        assert self.status == 1, self
        return [line.removeprefix("- ") for line in self.err.splitlines() if line.startswith("- ")]

    @property
    def requests(self) -> list[dict[str, Any]]:
        text = (self.folder / "requests.jsonl").read_text(encoding="utf-8")
        return [strict(line) for line in text.splitlines()]

    def object(self, name: str) -> dict[str, Any]:
        return strict((self.folder / name).read_text(encoding="utf-8"))


def strict(text: str) -> dict[str, Any]:
    """A JSON object; NaN and Infinity are no JSON."""

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} in {text[:80]}")

    value: dict[str, Any] = json.loads(text, parse_constant=refuse)
    return value


@pytest.fixture
def run(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> Callable[..., Ran]:
    """Run the command line; nothing it prints may be a traceback."""
    monkeypatch.chdir(tmp_path)

    def command(*arguments: str) -> Ran:
        folder = tmp_path / "run"
        monkeypatch.setattr(sys, "argv", ["run.py", *arguments])
        status = 0
        try:
            cli.main()
        except SystemExit as exit_:
            status = int(exit_.code or 0)
        printed = capsys.readouterr()
        assert "Traceback" not in printed.err + printed.out
        return Ran(status, printed.out, printed.err, folder)

    return command


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of 512 positions and one token a byte, with a random EAGLE head."""
    families = list(load_registry().families.values())
    model = write_tiny_checkpoint(
        tmp_path_factory.mktemp("models") / "tiny", "gqa", families, tokenizer=True
    )
    write_tiny_eagle(model / "eagle", model)
    return model
