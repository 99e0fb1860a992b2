"""What tests of studies share."""

import sys
from collections.abc import Iterator

import pytest

from interlock.study.worker import Worker


@pytest.fixture
def without_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where matplotlib is not installed: reports without drawing, which takes most of theirs."""
    monkeypatch.setitem(sys.modules, "matplotlib", None)


@pytest.fixture(scope="session")
def worker() -> Iterator[Worker]:
    """One for all studies: starting its process takes longer than a small run does."""
    with Worker() as shared:
        yield shared
