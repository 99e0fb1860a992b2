"""A study's folder: what is in it, written so that a study which was killed goes on from there.

study.json            what was asked and how it goes (the manifest)
cells/ID/rN[a]/       a run's folder, with machine.json, log.txt, perhaps quality.json, and
                      observation.json, written last: a run that has it is done; or failed.json
observations.jsonl    every run so far, one a line
analysis.json         what the runs show
"""

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

from interlock.core.errors import ConfigError, RunFolderError
from interlock.driver.run_folder import read_lines, read_object, write_file, write_lines
from interlock.study.findings import Findings
from interlock.study.order import Place
from interlock.study.plain_values import rebuild, strict
from interlock.study.spec import Cell, Observation, Refusal, Study

T = TypeVar("T")
MANIFEST, OBSERVATIONS, ANALYSIS = "study.json", "observations.jsonl", "analysis.json"
OBSERVATION = "observation.json"


class StudyFolder:
    """Reads and writes the folder at `path`. What cannot be read raises RunFolderError."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Keep other studies of this host out of the folder, which is made, inside the context.

        Raises ConfigError where one is at work there. A file system without locks keeps nobody out.
        """
        import fcntl

        try:
            self.path.mkdir(parents=True, exist_ok=True)
            held = os.open(self.path, os.O_RDONLY)
        except OSError as error:
            raise RunFolderError(f"{self.path}: cannot be made: {error.strerror}") from error
        try:
            with suppress(OSError):
                try:
                    fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError as error:
                    raise ConfigError(
                        f"{self.path}: a study that runs now is at work there; wait until it has "
                        "ended, or give --out another folder"
                    ) from error
        except BaseException:
            os.close(held)
            raise
        try:
            yield
        finally:
            os.close(held)

    def manifest(self) -> dict[str, Any]:
        """study.json."""
        found = read_object(self.path / MANIFEST)
        if "study" not in found:
            raise RunFolderError(f"{self.path / MANIFEST}: it holds no study")
        return found

    def study(self) -> Study:
        """What was asked."""
        return _rebuilt(Study, self.manifest()["study"], self.path / MANIFEST)

    def cells(self) -> tuple[Cell, ...]:
        """The cells that run, the baseline first."""
        return self._listed(Cell, "cells")

    def refusals(self) -> tuple[Refusal, ...]:
        """The cells that cannot run."""
        return self._listed(Refusal, "refusals")

    def observations(self) -> list[Observation]:
        """Every run so far, in the order in which they ran.

        Of a study that has not come to its end they are in the folders of its runs alone.
        """
        path = self.path / OBSERVATIONS
        if not path.is_file():
            alone = [(read_object(path), path) for path in self._ended()]
            found = [_rebuilt(Observation, line, path) for line, path in alone]
            return sorted(found, key=lambda one: one.place)
        return [_rebuilt(Observation, line, place) for place, line in read_lines(path)]

    def findings(self) -> Findings:
        """What the analysis said."""
        return _rebuilt(Findings, read_object(self.path / ANALYSIS), self.path / ANALYSIS)

    def _listed(self, kind: type[T], key: str) -> tuple[T, ...]:
        listed, path = self.manifest().get(key), self.path / MANIFEST
        if not isinstance(listed, list):
            raise RunFolderError(f"{path}: corrupt: it has no list of {key}")
        return tuple(_rebuilt(kind, one, path) for one in listed)

    def run_folder(self, cell: str, repeat: int, replica: int = 0) -> Path:
        """Where a run of the cell of this id is."""
        return self.path / "cells" / cell / f"r{repeat}{'a' * replica}"

    def observation(self, place: Place) -> Observation | None:
        """What a run that was done has left; None where it was not done."""
        path = self.path / place.folder / OBSERVATION
        return _rebuilt(Observation, read_object(path), path) if path.is_file() else None

    def num_ended(self) -> int:
        """How many runs are done, well or not."""
        return len(list(self._ended()))

    def _ended(self) -> Iterator[Path]:
        return self.path.glob(f"cells/*/*/{OBSERVATION}")

    def write_manifest(self, manifest: Mapping[str, Any]) -> None:
        """Write study.json, whole or not at all."""
        write_file(self.path / MANIFEST, [json.dumps(manifest, indent=1)])

    def write_observation(self, place: Place, seen: Observation) -> None:
        """Mark a run as done."""
        write_file(self.path / place.folder / OBSERVATION, [json.dumps(strict(asdict(seen)))])

    def write_observations(self, seen: Iterable[Observation]) -> None:
        """Write observations.jsonl."""
        write_lines(self.path / OBSERVATIONS, (strict(asdict(one)) for one in seen))

    def write_findings(self, findings: Findings) -> None:
        """Write analysis.json."""
        write_file(self.path / ANALYSIS, [json.dumps(strict(asdict(findings)), indent=1)])


def _rebuilt(kind: type[T], values: Any, place: str | Path) -> T:
    try:
        return rebuild(kind, values)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise RunFolderError(f"{place}: corrupt: no {kind.__name__} ({error})") from error
