"""The example plugin is installed as a stranger's package, passes its tests, and runs."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
EXAMPLE = ROOT / "examples" / "interlock-example-plugin"


class Installed:
    """The example in a folder of its own, so that neither checkout nor environment changes."""

    def __init__(self, directory: Path) -> None:
        self.source = directory / "source"
        self.site = directory / "site"
        shutil.copytree(EXAMPLE, self.source, ignore=shutil.ignore_patterns("build", "*.egg-info"))
        pip = ["-m", "pip", "install", "--no-deps", "--no-build-isolation", "--no-index", "--quiet"]
        self.python(*pip, "--target", str(self.site), str(self.source), cwd=directory)

    def python(self, *arguments: str, cwd: Path) -> str:
        """What a Python that sees the installed example prints, errors included."""
        done = subprocess.run(
            [sys.executable, *arguments],
            cwd=cwd,
            env=os.environ | {"PYTHONPATH": str(self.site), "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout
        return done.stdout


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    return Installed(tmp_path_factory.mktemp("example"))


def test_installed_package_holds_the_plugin_and_its_entry_point(installed: Installed) -> None:
    assert (installed.site / "interlock_example_lfu" / "policy.py").is_file()
    (entry_points,) = installed.site.glob("interlock_example_lfu-*.dist-info/entry_points.txt")
    assert entry_points.read_text().split() == ["[interlock]", "lfu", "=", "interlock_example_lfu"]


def test_its_own_tests_pass(installed: Installed) -> None:
    printed = installed.python("-m", "pytest", "-q", "-p", "no:cacheprovider", cwd=installed.source)
    assert " passed" in printed


def test_help_lists_the_policy_with_its_package(installed: Installed, tmp_path: Path) -> None:
    printed = installed.python(str(ROOT / "run.py"), "--help", cwd=tmp_path)
    (line,) = [line for line in printed.splitlines() if line.split()[:1] == ["lfu"]]
    assert "least frequently used first" in line
    assert "interlock-example-lfu" in line
    assert "cache.eviction.half_life_s" in printed


def test_run_with_the_policy_evicts_by_it_and_says_so(installed: Installed, tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    installed.python(
        str(ROOT / "run.py"),
        "cache/eviction=lfu",
        "cache.eviction.half_life_s=60",
        "executor=fixed",
        "cache.num_pages=48",
        "workload.num_requests=12",
        f"hydra.run.dir={run_dir}",
        cwd=tmp_path,
    )
    manifest = json.loads((run_dir / "run.json").read_text())
    assert manifest["components"]["cache/eviction"] == {
        "class": "interlock_example_lfu.policy.LFUEviction",
        "distribution": "interlock-example-lfu",
        "version": "0.1.0",
    }
    assert manifest["config"]["cache"]["eviction"]["half_life_s"] == 60.0
    assert manifest["counters"]["cache/eviction"]["evicted_pages"] > 0
    assert "cache/eviction" not in manifest["inert"]
