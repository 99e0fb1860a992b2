"""Calls that hang are given up in time, and what they do later is not seen."""

import contextlib
import os
import threading
import time

from interlock.core.testing.tier_contract import PAYLOAD_BYTES, got, key_of, payload_of, put
from tests.cache.disk_stores import MOST_S, file_of, files_in, open_store, until


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
