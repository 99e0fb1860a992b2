"""What tests of studies share."""

import sys

import pytest


@pytest.fixture
def without_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where matplotlib is not installed: reports without drawing, which takes most of theirs."""
    monkeypatch.setitem(sys.modules, "matplotlib", None)
