"""A disk tier for tests that need only one."""

import contextlib

import pytest

from tests.cache.disk_stores import open_store


@pytest.fixture
def store(tmp_path):
    with contextlib.closing(open_store(tmp_path)) as opened:
        yield opened
