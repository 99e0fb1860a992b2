"""Temporary environments: this one's packages and others, which are really installed."""

import json
import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path

from tests import forked

ROOT = forked.ROOT
PIP = ["-m", "pip", "install", "--no-deps", "--no-build-isolation", "--no-index", "--quiet"]
_ALL = """
import contextlib, io, json, sys
from interlock.driver.cli import main
printed = []
for command in json.loads(sys.argv[1]):
    sys.argv[1:], said, status = command, io.StringIO(), 0
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        try:
            main()
        except SystemExit as ended:
            status = ended.code or 0
    assert status == 0, (command, status, said.getvalue())
    printed.append(said.getvalue())
print(json.dumps(printed))
"""


class Site:
    """A folder of packages that a Python started here sees before its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environment: dict[str, str] = {}
        self.sources = folder.parent / f"{folder.name}-sources"
        """Copies of what `pip_install` built."""

    def pip_install(self, *sources: Path) -> None:
        """Build and install these source trees, which stay as they are."""
        copies = []
        for source in sources:
            copy = self.sources / source.name
            shutil.copytree(source, copy, ignore=shutil.ignore_patterns("build", "*.egg-info"))
            copies.append(str(copy))
        self.python(*PIP, "--target", str(self.folder), *copies, cwd=self.folder)

    def put(self, source: Path) -> None:
        """The packages of a source tree and the metadata that an installer leaves of them."""
        project = tomllib.loads((source / "pyproject.toml").read_text())
        for package in project["tool"]["setuptools"]["packages"]:
            shutil.copytree(source / package, self.folder / package)
        about = project["project"]
        for group, points in about["entry-points"].items():
            lines = [f"{name} = {value}" for name, value in points.items()]
            self.metadata(about["name"], about["version"], [f"[{group}]", *lines])
            (info,) = self.folder.glob(f"{about['name'].replace('-', '_')}-*.dist-info")
            files = [f for p in project["tool"]["setuptools"]["packages"]
                     for f in (self.folder / p).rglob("*.py")]  # fmt: skip
            rows = [f"{file.relative_to(self.folder).as_posix()},," for file in files]
            (info / "RECORD").write_text("\n".join(rows) + "\n")

    def metadata(self, name: str, version: str, entry_points: list[str]) -> None:
        """A distribution of this name, as importlib.metadata finds it."""
        info = self.folder / f"{name.replace('-', '_')}-{version}.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        (info / "entry_points.txt").write_text("\n".join(entry_points) + "\n")

    def interlock(self, *arguments: str, cwd: Path, status: int = 0) -> str:
        """What the command line prints, errors included."""
        return self.code("from interlock.driver.cli import main; main()", *arguments, cwd=cwd,
                         status=status)  # fmt: skip

    def interlock_all(self, *commands: Sequence[str], cwd: Path) -> list[str]:
        """What several command lines print, one after the other in one process.

        Each has what a process of its own would have but the imports, which take most of the time.
        """
        printed = self.code(_ALL, json.dumps([list(one) for one in commands]), cwd=cwd)
        found: list[str] = json.loads(printed.splitlines()[-1])
        return found

    def code(self, text: str, *arguments: str, cwd: Path, status: int = 0) -> str:
        """What this code prints in a process that has Interlock imported, errors included."""
        found, printed = forked.run(text, *arguments, cwd=cwd, environment=self._environment())
        assert found == status, printed
        return printed

    def _environment(self) -> dict[str, str]:
        path = [str(self.folder), *filter(None, [os.environ.get("PYTHONPATH")])]
        own = {"PYTHONPATH": os.pathsep.join(path), "OMP_NUM_THREADS": "1"}
        return {**os.environ, **own, **self.environment}

    def without_figures(self) -> None:
        """As where matplotlib is not installed: reports without drawing."""
        (self.folder / "matplotlib.py").write_text("raise ImportError('hidden by a test')\n")

    def python(self, *arguments: str, cwd: Path, status: int = 0) -> str:
        """What a Python that sees the site prints, errors included."""
        done = subprocess.run(
            [sys.executable, *arguments],
            cwd=cwd,
            env=self._environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        assert done.returncode == status, done.stdout
        return done.stdout
