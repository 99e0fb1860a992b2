"""What is installed is what is in the tree."""

import subprocess
import tomllib
from importlib.metadata import entry_points
from pathlib import Path, PurePosixPath

import pytest

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
SETUPTOOLS = PROJECT["tool"]["setuptools"]
NAMES = ("core", "driver", "plugins", "conf", "models", "study")
FOLDERS = {f"interlock.{name}": name for name in NAMES}


def tracked_files() -> list[str]:
    listed = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if listed.returncode != 0:
        pytest.skip("not a git checkout: which files belong to the project is not known")
    return listed.stdout.splitlines()


def test_the_package_list_equals_the_tree():
    in_tree = {
        "interlock." + ".".join(init.parent.relative_to(ROOT).parts)
        for folder in FOLDERS.values()
        for init in (ROOT / folder).rglob("__init__.py")
    }
    assert set(SETUPTOOLS["packages"]) == in_tree
    assert SETUPTOOLS["package-dir"] == FOLDERS


def test_every_folder_with_modules_is_a_package():
    for folder in FOLDERS.values():
        for module in (ROOT / folder).rglob("*.py"):
            assert (module.parent / "__init__.py").is_file(), module


def test_every_data_file_is_in_some_package():
    patterns = [
        f"{FOLDERS[package]}/{pattern}"
        for package, listed in SETUPTOOLS["package-data"].items()
        for pattern in listed
    ]
    for name in tracked_files():
        if name.split("/")[0] in FOLDERS.values() and not name.endswith((".py", ".md")):
            assert any(matches(name, pattern) for pattern in patterns), name


def matches(name: str, pattern: str) -> bool:
    """`**/` stands for any folders, also none; `*` never crosses one."""
    if "**/" not in pattern:
        path = PurePosixPath(name)
        return len(path.parts) == len(PurePosixPath(pattern).parts) and path.match(pattern)
    start, end = pattern.split("**/")
    return name.startswith(start) and PurePosixPath(name).match(end)


def test_the_entry_points_are_installed_as_declared():
    declared = PROJECT["project"]["entry-points"]["interlock"]
    installed = {
        point.name: point.value
        for point in entry_points(group="interlock")
        if point.dist is not None and point.dist.name == "interlock"
    }
    assert declared == installed == {"builtin": "interlock.plugins"}


def test_a_namespace_without_its_own_init_keeps_plugins_beside_core():
    assert not (ROOT / "__init__.py").exists()
    for folder in ("core", "plugins"):
        assert (ROOT / folder / "py.typed").is_file()
