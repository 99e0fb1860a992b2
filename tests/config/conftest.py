"""Plugins written to disk as installed distributions, and the built-in registry."""

import sys
from collections.abc import Callable, Iterator, Sequence
from importlib.metadata import EntryPoint, distributions
from pathlib import Path
from textwrap import dedent

import pytest

from interlock.core.registry import Registry, build_registry

HEADER = """
from dataclasses import dataclass
from interlock.core.component import Component
from interlock.core.hooks import hookimpl
from interlock.core.options import option
INTERLOCK_CONTRACT = 1
"""

InstallPlugin = Callable[..., Path]


@pytest.fixture
def install(tmp_path: Path) -> Iterator[InstallPlugin]:
    """Write a distribution with one plugin module into a folder of sys.path."""
    before_path, before_modules = list(sys.path), set(sys.modules)

    def write(
        distribution: str,
        body: str,
        version: str = "1.0",
        folder: str = "site",
        header: str = HEADER,
    ) -> Path:
        site = tmp_path / folder
        module = distribution.replace("-", "_")
        info = site / f"{module}-{version}.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\n"
        )
        (info / "entry_points.txt").write_text(f"[interlock]\n{module} = {module}\n")
        (site / f"{module}.py").write_text(header + dedent(body))
        if str(site) not in sys.path:
            sys.path.insert(0, str(site))
        return site

    yield write
    sys.path[:] = before_path
    for name in set(sys.modules) - before_modules:
        if not name.startswith("interlock."):
            del sys.modules[name]


def entry_points_in(folders: Sequence[Path]) -> list[EntryPoint]:
    """Every plugin entry point of these folders, repeated where a distribution is."""
    found = distributions(path=[str(folder) for folder in folders])
    return [point for d in found for point in d.entry_points if point.group == "interlock"]


def built_in_entry_points() -> list[EntryPoint]:
    return [p for p in distribution_entry_points("interlock") if p.group == "interlock"]


def distribution_entry_points(name: str) -> list[EntryPoint]:
    from importlib.metadata import distribution

    return list(distribution(name).entry_points)


@pytest.fixture
def registry_of() -> Callable[..., Registry]:
    """The registry of the built-in plugin and of those in these folders."""

    def build(*folders: Path) -> Registry:
        return build_registry([*built_in_entry_points(), *entry_points_in(folders)])

    return build
