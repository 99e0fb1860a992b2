"""What the system refuses is a miss with a counted reason, and never wrong bytes."""

import contextlib
import errno
import os
import random
import subprocess

import pytest

from interlock.core.testing.tier_contract import PAYLOAD_BYTES, got, held, key_of, put
from tests.cache.disk_stores import FITS, failing, files_in, open_store


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
