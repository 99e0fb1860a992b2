"""Run the conformance kit on components and say how each contract test ended."""

import os
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import chdir, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from interlock.core.errors import ConfigError, InterlockError
from interlock.core.registry import Registry
from interlock.driver.conformance import contract_of

PASSED, FAILED, SKIPPED = "passed", "FAILED", "skipped"

_MODULE = """\
from pathlib import Path
from interlock.driver.plugin_check import asked
TestContract = asked(Path(__file__).parent)
"""


@dataclass(frozen=True)
class Ended:
    """One contract test: its sentence, how it ended, why (where it did not pass), and in full."""

    test: str
    outcome: str
    why: str = ""
    details: str = ""


@dataclass(frozen=True)
class Checked:
    """A component under the kit."""

    component: str
    """As it is typed: `cache/eviction=lru`."""
    origin: str
    tests: tuple[Ended, ...]
    refused: str = ""
    """Why there was no test to run."""

    @property
    def passed(self) -> bool:
        """Every test that applies passed, and there was one."""
        outcomes = [test.outcome for test in self.tests]
        return not self.refused and PASSED in outcomes and FAILED not in outcomes


_asked: dict[Path, type] = {}


def asked(folder: Path) -> type:
    """The contract that the test module in this folder runs."""
    return _asked[folder]


def components_called(word: str, registry: Registry) -> list[tuple[str, str]]:
    """Those that a word names: `seam/name`, `seam=name`, a component, or a distribution.

    ConfigError where it names none, with what there is; a broken plugin of the name with its cause.
    """
    keys = list(registry.components)
    written = {f"{seam}{joint}{name}": (seam, name) for seam, name in keys for joint in "/="}
    if word in written:
        return [written[word]]
    found = [key for key in keys if key[1] == word]
    found = found or [key for key in keys if _plain(registry, key) == word.lower()]
    if found:
        return found
    broken = [str(p) for p in registry.broken if word in (p.origin.distribution, p.entry_point)]
    if broken:
        raise ConfigError(broken)
    raise ConfigError(
        f"no component, seam/component or plugin is called {word!r}; `interlock plugins` lists them"
    )


def _plain(registry: Registry, key: tuple[str, str]) -> str:
    return registry.origins[key].distribution.lower()


def check(
    registry: Registry,
    key: tuple[str, str],
    options: Sequence[str] = (),
    declared: Mapping[str, Any] | None = None,
) -> Checked:
    """Every test of the contract of a component's seam, run on it."""
    seam, name = key
    typed, origin = f"{seam}={name}", str(registry.origins[key])
    pytest = _pytest()
    with tempfile.TemporaryDirectory(prefix="interlock-kit-") as folder:
        scratch = Path(folder).resolve()
        try:
            contract = contract_of(registry, seam, name, options, declared or {}, scratch)
        except InterlockError as error:
            return Checked(typed, origin, (), " ".join(str(error).split()))
        return Checked(typed, origin, tuple(_run(pytest, contract, scratch)))


def _run(pytest: Any, contract: type, folder: Path) -> list[Ended]:
    module = folder / f"test_{folder.name.replace('-', '_')}.py"
    module.write_text(_MODULE)
    recorder, _asked[folder] = _Recorder(), contract
    settings = [f"--rootdir={folder}", "-c", os.devnull, "--import-mode=importlib"]
    quiet = ["-p", "no:terminal", "-p", "no:cacheprovider"]
    try:
        with (
            chdir(folder),
            _environment(
                PYTEST_DISABLE_PLUGIN_AUTOLOAD="1",
                PYTEST_ADDOPTS="",
                HYPOTHESIS_STORAGE_DIRECTORY=str(folder / "hypothesis"),
            ),
        ):
            pytest.main([*settings, *quiet, str(module)], plugins=[recorder])
    finally:
        del _asked[folder]
    return recorder.ended


def _pytest() -> Any:
    try:
        import hypothesis  # noqa: F401  # the contracts need it
        import pytest
    except ImportError as error:
        raise ConfigError(
            f"the conformance kit needs pytest and hypothesis ({error}); "
            "pip install 'pytest>=8' 'hypothesis>=6.100'"
        ) from error
    if "interlock.core.testing" not in sys.modules:  # too late where somebody tests already
        pytest.register_assert_rewrite("interlock.core.testing")
    return pytest


class _Recorder:
    """A pytest plugin that keeps how tests ended, and says nothing."""

    def __init__(self) -> None:
        self.ended: list[Ended] = []

    def pytest_collectreport(self, report: Any) -> None:
        """A module that cannot be collected is a failed test."""
        if report.failed:
            self.ended.append(_failed("the contract can be run", report))

    def pytest_runtest_logreport(self, report: Any) -> None:
        """One test, or what stopped it before or after."""
        test = report.nodeid.rpartition("::")[2].removeprefix("test_").replace("_", " ")
        if report.failed:
            self.ended.append(_failed(test, report))
        elif report.skipped:
            reason = str(report.longrepr[2] if isinstance(report.longrepr, tuple) else "")
            self.ended.append(Ended(test, SKIPPED, reason.removeprefix("Skipped: ")))
        elif report.when == "call":
            self.ended.append(Ended(test, PASSED))


def _failed(test: str, report: Any) -> Ended:
    crash = getattr(report.longrepr, "reprcrash", None)
    lines = str(crash.message if crash else report.longreprtext).strip().splitlines()
    why = lines[0] if lines else "no reason is given"
    asserted = [line for line in report.longreprtext.splitlines() if line.startswith(">")]
    if why == "AssertionError" and asserted:
        why = asserted[-1].lstrip("> ")
    return Ended(test, FAILED, why, report.longreprtext)


@contextmanager
def _environment(**values: str) -> Iterator[None]:
    before = {key: os.environ.get(key) for key in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for key, value in before.items():
            if value is None:
                del os.environ[key]
            else:
                os.environ[key] = value
