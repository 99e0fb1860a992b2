"""What goes wrong on a disk is a miss with a counted reason, in time, and never wrong bytes."""

import contextlib
import errno
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from interlock.core.errors import ConfigError
from interlock.core.testing.tier_contract import (
    PAYLOAD_BYTES,
    got,
    held,
    key_of,
    payload_of,
    put,
)
from interlock.plugins.cache.tiers import DiskTierConfig
from interlock.plugins.cache.tiers.disk import DiskTier
from interlock.plugins.cache.tiers.disk_files import TierFolder

SPACE, OTHER = "0123456789abcdef", "fedcba9876543210"
FITS = (1 << 20) // PAYLOAD_BYTES
TIMEOUT_S = 10.0
MOST_S = 1.0
"""More than any call takes whose bound is 0.05 s, on a busy machine."""


def open_store(folder, space=SPACE, timeout_s=TIMEOUT_S, **options):
    config = DiskTierConfig(**{"capacity_mib": 1, "retry_s": 0.0, **options})
    return DiskTier(TierFolder(str(folder), space), config, timeout_s)


@pytest.fixture
def store(tmp_path):
    with contextlib.closing(open_store(tmp_path)) as opened:
        yield opened


def file_of(folder, number, space=SPACE):
    digits = key_of(number).hex()
    return folder / space / digits[:2] / f"{digits[2:]}.kv1"


def files_in(folder):
    return sorted(p for p in folder.rglob("*") if p.is_file() and p.name != "lock")


def failing(error, *, after=0):
    """A stand-in for a system call that fails from its call number `after` on."""
    calls = iter(range(1 << 30))

    def call(*_args, **_more):
        if next(calls) >= after:
            raise OSError(error, os.strerror(error))

    return call


@pytest.mark.parametrize(
    ("error", "reason"),
    [(errno.EIO, "io"), (errno.EROFS, "permission"), (errno.ENOSPC, "full"), (errno.EFBIG, "size")],
)
@pytest.mark.parametrize("call", ["open", "writev", "rename"])
def test_failed_write_leaves_nothing(store, tmp_path, monkeypatch, call, error, reason):
    assert put(store, 1)
    before = files_in(tmp_path)
    with monkeypatch.context() as broken:
        broken.setattr(os, call, failing(error))
        assert not put(store, 2)
    assert store.failures == {reason: 1}
    assert files_in(tmp_path) in ([], before)  # a full disk makes room from old entries
    assert held(store, [2]) == [False]
    assert put(store, 2)
    assert got(store, 2)


def test_failed_sync_leaves_nothing(tmp_path, monkeypatch):
    with contextlib.closing(open_store(tmp_path, sync=True)) as store:
        with monkeypatch.context() as broken:
            broken.setattr(os, "fdatasync", failing(errno.EIO))
            assert not put(store, 1)
        assert files_in(tmp_path) == []
        assert (dict(store.failures), store.used_bytes()) == ({"io": 1}, 0)


def test_system_that_writes_and_reads_in_pieces_gives_whole_entries(store, monkeypatch):
    write, read = os.writev, os.readv
    monkeypatch.setattr(os, "writev", lambda file, parts: write(file, [b"".join(parts)[:1000]]))
    monkeypatch.setattr(os, "readv", lambda file, parts: read(file, [parts[0][:7000]]))
    assert put(store, 1)
    assert got(store, 1)


def test_disk_that_others_filled_takes_new_entries_for_old_ones(tmp_path):
    small = tmp_path / "small"
    small.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=400k", "tmpfs", str(small)],
        capture_output=True, check=False,
    )  # fmt: skip
    if mounted.returncode != 0:
        pytest.skip("this user may not mount a small file system")
    try:
        with contextlib.closing(open_store(small)) as store:
            for number in range(40):
                assert put(store, number), store.failures
                assert got(store, number)
            assert store.used_bytes() < 400_000
            filled = small / "other"
            with filled.open("wb") as file, contextlib.suppress(OSError):
                file.write(bytes(1 << 20))
            for number in range(40, 60):
                put(store, number)
            assert not any(got(store, number) for number in range(30))
            assert set(store.failures) <= {"full"}
    finally:
        subprocess.run(["umount", "-l", str(small)], check=True)


def test_read_that_hangs_is_given_up_in_time_and_the_store_recovers(tmp_path):
    with contextlib.closing(open_store(tmp_path, timeout_s=0.05, retry_s=0.2)) as store:
        until(lambda: put(store, 1) and put(store, 2))  # 0.05 s may pass on a busy machine
        store.failures.clear()
        hung = file_of(tmp_path, 1)
        hung.unlink()
        os.mkfifo(hung)  # opening it waits for somebody who writes into it
        buffer = bytearray(PAYLOAD_BYTES)
        begun_s = time.monotonic()
        assert not store.read(key_of(1), memoryview(buffer))
        assert time.monotonic() - begun_s < MOST_S
        assert store.failures["timeout"] == 1
        assert not got(store, 2)
        assert not put(store, 3)
        assert time.monotonic() - begun_s < MOST_S
        assert store.failures["paused"] >= 1
        os.close(os.open(hung, os.O_WRONLY))
        until(lambda: got(store, 2))
        until(lambda: put(store, 1) and got(store, 1))


def test_read_that_ends_too_late_leaves_the_buffer_alone(tmp_path, monkeypatch):
    go, ended, read = threading.Event(), threading.Event(), os.readv

    def slow(file, parts):
        go.wait(20)
        count = read(file, parts)
        ended.set()
        return count

    with contextlib.closing(open_store(tmp_path, timeout_s=0.05)) as store:
        until(lambda: put(store, 1))
        monkeypatch.setattr(os, "readv", slow)
        buffer = bytearray(PAYLOAD_BYTES)
        assert not store.read(key_of(1), memoryview(buffer))
        go.set()
        assert ended.wait(20)
        until(lambda: got(store, 1))
        assert buffer == bytes(PAYLOAD_BYTES)


def test_write_that_hangs_is_not_there_when_it_ends(tmp_path, monkeypatch):
    go, rename = threading.Event(), os.rename
    with contextlib.closing(open_store(tmp_path, timeout_s=0.05)) as store:
        with monkeypatch.context() as slow:
            slow.setattr(os, "rename", lambda *names: (go.wait(20), rename(*names)))
            begun_s = time.monotonic()
            assert not put(store, 1)
            assert time.monotonic() - begun_s < MOST_S
            assert store.failures == {"timeout": 1}
            go.set()
            until(lambda: files_in(tmp_path) == [] and store.used_bytes() == 0)
        until(lambda: put(store, 1))
        until(lambda: got(store, 1))


def test_every_thread_hanging_makes_calls_late_and_not_endless(tmp_path):
    with contextlib.closing(open_store(tmp_path, timeout_s=0.05, threads=2)) as store:
        numbers = range(4)
        for number in numbers:
            until(lambda number=number: put(store, number))
            file_of(tmp_path, number).unlink()
            os.mkfifo(file_of(tmp_path, number))
        begun_s = time.monotonic()
        assert not any(got(store, number) for number in numbers)
        assert time.monotonic() - begun_s < MOST_S
        for number in numbers:  # frees the two threads that opened one, and does not wait
            with contextlib.suppress(OSError):
                os.close(os.open(file_of(tmp_path, number), os.O_WRONLY | os.O_NONBLOCK))


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


def test_several_reads_and_writes_that_hang_take_no_longer_than_one(tmp_path, monkeypatch):
    go, opened = threading.Event(), os.open
    with contextlib.closing(open_store(tmp_path, timeout_s=0.3, threads=2)) as store:
        until(lambda: put(store, 0))
        keys, buffers = [key_of(n) for n in range(8)], [bytearray(payload_of(n)) for n in range(8)]
        views = list(map(memoryview, buffers))
        with monkeypatch.context() as slow:
            slow.setattr(os, "open", lambda *args: (go.wait(20), opened(*args))[1])
            begun_s = time.monotonic()
            assert store.write_many(keys, views) == [True] + [False] * 7
            assert store.read_many(keys, views) == 0
            assert time.monotonic() - begun_s < MOST_S
            assert store.failures["timeout"] >= 7
            go.set()
            until(lambda: len(files_in(tmp_path)) == 1 and store.used_bytes() == PAYLOAD_BYTES)
        assert buffers == [payload_of(n) for n in range(8)]
        until(  # on a busy machine a call may run out of time, and lose what it wrote
            lambda: (
                store.write_many(keys, views) == [True] * 8 and store.read_many(keys, views) == 8
            )
        )


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


@pytest.mark.parametrize("call", ["open", "readv", "fstat"])
def test_read_that_the_system_refuses_is_a_counted_miss(store, monkeypatch, call):
    assert put(store, 1)
    with monkeypatch.context() as broken:
        broken.setattr(os, call, failing(errno.EACCES))
        assert not got(store, 1)
    assert store.failures == {"permission": 1}
    assert held(store, [1]) == [False]
    assert put(store, 1)
    assert got(store, 1)
    assert store.used_bytes() == PAYLOAD_BYTES


def test_entry_that_cannot_be_deleted_still_counts_and_is_not_read(store, monkeypatch):
    assert all(put(store, number) for number in range(FITS))
    with monkeypatch.context() as broken:
        broken.setattr(os, "unlink", failing(errno.EPERM))
        broken.setattr(os, "rename", failing(errno.EPERM))
        assert not put(store, 100)
        store.remove(key_of(5))
    assert store.failures == {"permission": 2}
    assert held(store, [5, 100]) == [False, False]
    assert not got(store, 5)
    assert store.used_bytes() == FITS * PAYLOAD_BYTES
    assert put(store, 101)
    assert store.used_bytes() <= store.capacity_bytes


def test_any_mix_of_failing_system_calls_never_gives_wrong_bytes(store, monkeypatch):
    dice = random.Random(7)
    errors = (errno.EIO, errno.ENOSPC, errno.EACCES, errno.ENOENT, errno.EMFILE)
    for name in ("open", "writev", "readv", "rename", "unlink", "fstat", "close"):
        real = getattr(os, name)

        def call(*args, real=real, name=name, **more):
            if dice.random() < 0.1:
                if name == "close":
                    real(*args)
                raise OSError(dice.choice(errors), "injected")
            return real(*args, **more)

        monkeypatch.setattr(os, name, call)
    reads = 0
    for _ in range(1500):
        number = dice.randrange(2 * FITS)
        if dice.random() < 0.5:
            put(store, number)
        else:
            reads += got(store, number)
        assert 0 <= store.used_bytes() <= store.capacity_bytes
    assert reads > 100
    assert store.failures.total() > 100
    monkeypatch.undo()


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


def until(true, timeout_s=20.0):
    end_s = time.monotonic() + timeout_s
    while not true():
        assert time.monotonic() < end_s
        time.sleep(0.01)


def test_a_folder_on_a_full_disk_is_refused_by_name_and_is_free_afterwards(tmp_path, monkeypatch):
    with monkeypatch.context() as full:
        full.setattr(os, "pwrite", failing(errno.ENOSPC))
        with pytest.raises(ConfigError, match="No space left on device; free some there") as raised:
            TierFolder(str(tmp_path), "0" * 16)
    assert f"directory={tmp_path} of the disk tier" in str(raised.value)
    TierFolder(str(tmp_path), "0" * 16).close()
