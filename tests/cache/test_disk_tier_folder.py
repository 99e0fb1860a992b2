"""A disk tier's folder: whose it is, and what happens when it goes or cannot be used."""

import contextlib
import errno
import os
import shutil
import time

import pytest

from interlock.core.errors import ConfigError
from interlock.core.testing.tier_contract import PAYLOAD_BYTES, got, put
from interlock.plugins.cache.tiers.disk_files import TierFolder
from tests.cache.disk_stores import MOST_S, OTHER, SPACE, failing, open_store


def test_folder_deleted_while_it_is_used_loses_what_was_in_it(store, tmp_path):
    assert put(store, 1)
    shutil.rmtree(tmp_path / SPACE)
    assert not got(store, 1)
    assert store.failures == {"gone": 1}
    assert put(store, 1)
    assert got(store, 1)


def test_folder_that_became_a_file_or_unreadable_is_a_miss(store, tmp_path):
    assert put(store, 1)
    (tmp_path / SPACE).rename(tmp_path / "away")
    (tmp_path / SPACE).write_bytes(b"")
    assert not got(store, 1)
    assert not put(store, 2)
    assert store.failures == {"io": 2}
    (tmp_path / SPACE).unlink()
    (tmp_path / "away").rename(tmp_path / SPACE)
    assert put(store, 1)
    assert got(store, 1)
    assert store.used_bytes() == PAYLOAD_BYTES


def test_folder_that_cannot_be_used_is_refused_at_the_start(tmp_path):
    file = tmp_path / "file"
    file.write_bytes(b"")
    for folder in (file, file / "below"):
        with pytest.raises(ConfigError, match=r"cannot be used: .*a folder"):
            open_store(folder)


def test_folder_in_use_is_refused_until_its_store_is_closed(tmp_path):
    with contextlib.closing(open_store(tmp_path)):
        with pytest.raises(ConfigError, match=f"in use by process {os.getpid()}"):
            open_store(tmp_path, OTHER)
    open_store(tmp_path, OTHER).close()


def test_closed_store_says_no_at_once(tmp_path):
    store = open_store(tmp_path)
    assert put(store, 1)
    store.close()
    begun_s = time.monotonic()
    assert not got(store, 1)
    assert not put(store, 2)
    assert time.monotonic() - begun_s < MOST_S


def test_a_folder_on_a_full_disk_is_refused_by_name_and_is_free_afterwards(tmp_path, monkeypatch):
    with monkeypatch.context() as full:
        full.setattr(os, "pwrite", failing(errno.ENOSPC))
        with pytest.raises(ConfigError, match="No space left on device; free some there") as raised:
            TierFolder(str(tmp_path), "0" * 16)
    assert f"directory={tmp_path} of the disk tier" in str(raised.value)
    TierFolder(str(tmp_path), "0" * 16).close()
