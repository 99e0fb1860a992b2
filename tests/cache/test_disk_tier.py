"""What becomes of a disk tier's entries and files: which go, which stay, whose they are."""

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

from interlock.core.testing.tier_contract import PAYLOAD_BYTES, got, held, key_of, put
from tests.cache.disk_stores import FITS, OTHER, SPACE, file_of, files_in, open_store


def test_entries_of_another_model_or_version_count_and_go_and_are_never_read(tmp_path):
    with contextlib.closing(open_store(tmp_path, OTHER)) as other:
        assert all(put(other, number) for number in range(4))
    old = file_of(tmp_path, 9, SPACE).with_suffix(".kv0")
    old.parent.mkdir(parents=True)
    old.write_bytes(bytes(5068))
    with contextlib.closing(open_store(tmp_path)) as store:
        assert (store.leftovers, store.leftover_bytes) == (5, 4 * PAYLOAD_BYTES + 5000)
        assert store.used_bytes() == store.leftover_bytes
        assert held(store, range(10)) == [False] * 10
        assert list(store.keys()) == []
        for number in range(20, 20 + FITS):
            assert put(store, number)
            assert store.used_bytes() <= store.capacity_bytes
        assert len(files_in(tmp_path)) == FITS
        assert not old.exists()
        assert not any(file_of(tmp_path, number, OTHER).exists() for number in range(4))


def test_file_of_another_key_under_this_name_is_a_miss(store, tmp_path):
    assert put(store, 1)
    assert put(store, 2)
    file_of(tmp_path, 2).replace(file_of(tmp_path, 1))
    assert not got(store, 1)
    assert not got(store, 2)
    assert store.failures == {"damaged": 1, "gone": 1}


def test_files_of_others_are_neither_counted_nor_deleted(tmp_path):
    mine = [tmp_path / "notes.txt", tmp_path / SPACE / "ab" / "photo.kv1", tmp_path / "ab" / "x"]
    for file in mine:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(b"mine")
    with contextlib.closing(open_store(tmp_path)) as store:
        assert store.used_bytes() == 0
        for number in range(2 * FITS):
            assert put(store, number)
    assert all(file.read_bytes() == b"mine" for file in mine)


def test_unfinished_files_are_deleted_at_the_start(tmp_path):
    file = file_of(tmp_path, 1).with_suffix(".12.tmp")
    file.parent.mkdir(parents=True)
    file.write_bytes(bytes(100))
    with contextlib.closing(open_store(tmp_path)) as store:
        assert store.used_bytes() == 0
    assert files_in(tmp_path) == []


WRITER = """
import random
from interlock.plugins.cache.tiers import DiskTierConfig
from interlock.plugins.cache.tiers.disk import DiskTier
from interlock.plugins.cache.tiers.disk_files import TierFolder
from hashlib import blake2b
store = DiskTier(TierFolder({folder!r}, {space!r}), DiskTierConfig(capacity_mib=1), 10.0)
print("begun", flush=True)
number = 0
while True:
    data = random.Random(number % 100).randbytes({size})
    store.write(blake2b(str(number % 100).encode(), digest_size=32).digest(), memoryview(data))
    number += 1
"""


def test_process_killed_while_it_writes_leaves_whole_entries_only(tmp_path):
    code = WRITER.format(folder=str(tmp_path), space=SPACE, size=PAYLOAD_BYTES)
    for wait_s in (0.1, 0.2):
        with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as writer:
            assert writer.stdout.readline() == b"begun\n"
            time.sleep(wait_s)
            writer.send_signal(signal.SIGKILL)
        with contextlib.closing(open_store(tmp_path)) as store:
            there = held(store, range(100))
            assert [got(store, number) for number in range(100)] == there
            assert any(there)
            assert dict(store.failures) == {}
            assert store.used_bytes() == sum(there) * PAYLOAD_BYTES <= store.capacity_bytes
            assert len(files_in(tmp_path)) == sum(there)


def test_file_of_the_entry_that_goes_is_written_over(store, tmp_path):
    assert all(put(store, number) for number in range(FITS))
    inode = file_of(tmp_path, 0).stat().st_ino
    (tmp_path / "kept").hardlink_to(file_of(tmp_path, 1))
    before = (tmp_path / "kept").read_bytes()
    file_of(tmp_path, 100).parent.mkdir(exist_ok=True)
    assert put(store, 100)
    assert put(store, 101)
    assert file_of(tmp_path, 100).stat().st_ino == inode
    assert (tmp_path / "kept").read_bytes() == before, "somebody else's name for the file"
    assert held(store, [0, 1]) == [False, False]
    assert all(got(store, number) for number in [*range(2, FITS), 100, 101])
    assert len(files_in(tmp_path)) == FITS + 1
    assert dict(store.failures) == {}


def test_entry_that_is_written_over_while_it_is_read_is_gone_and_not_damaged(
    store, tmp_path, monkeypatch
):
    assert all(put(store, number) for number in range(FITS))
    file_of(tmp_path, 100).parent.mkdir(exist_ok=True)
    read, late = os.readv, iter([True])

    def readv(file, parts):
        if next(late, False):  # all others are used, and one more is written
            assert all(got(store, number) for number in range(1, FITS))
            assert put(store, 100)
        return read(file, parts)

    monkeypatch.setattr(os, "readv", readv)
    assert not got(store, 0)
    assert dict(store.failures) == {"gone": 1}
    assert got(store, 100)
    assert store.used_bytes() == FITS * PAYLOAD_BYTES
    assert len(files_in(tmp_path)) == FITS


def test_entry_unused_for_longest_goes_first_also_after_a_restart(tmp_path):
    with contextlib.closing(open_store(tmp_path)) as store:
        for number in range(FITS):
            assert put(store, number)
            if number < 6:
                time.sleep(0.01)  # times of files are those of the system's ticks
        assert got(store, 0)
    with contextlib.closing(open_store(tmp_path)) as store:
        assert got(store, 1)
        assert all(put(store, number) for number in (100, 101, 102))
        assert held(store, range(6)) == [True, True, False, False, False, True]


def test_lower_limit_is_kept_from_the_start(tmp_path):
    with contextlib.closing(open_store(tmp_path, capacity_mib=2)) as store:
        assert all(put(store, number) for number in range(2 * FITS))
    with contextlib.closing(open_store(tmp_path)) as store:
        assert store.used_bytes() <= store.capacity_bytes
        assert held(store, [0, 2 * FITS - 1]) == [False, True]
        assert len(files_in(tmp_path)) == FITS


def test_threads_leave_no_file_that_is_not_counted(store, tmp_path):
    def use(thread):
        dice = random.Random(thread)
        for _ in range(150):
            number, action = dice.randrange(6), dice.choice([put, put, got, None])
            store.remove(key_of(number)) if action is None else action(store, number)

    for _ in range(3):
        with ThreadPoolExecutor(4) as threads:
            list(threads.map(use, range(4)))
        there = [number for number in range(6) if held(store, [number]) == [True]]
        assert {file_of(tmp_path, number) for number in there} >= set(files_in(tmp_path))
        assert store.used_bytes() == len(there) * PAYLOAD_BYTES
