"""A server that hangs, dies, refuses or forgets makes misses in time, and never wrong bytes."""

import contextlib
import importlib
import signal
import socket
import sys
import threading
import time

import pytest

from interlock.core.errors import ConfigError
from interlock.core.testing.tier_contract import PAYLOAD_BYTES, got, held, key_of, put
from interlock.plugins.cache.tiers import RemoteTierConfig
from tests.cache.servers import start_valkey

TIMEOUT_S, RETRY_S = 0.3, 0.4
MOST_S = 3.0
"""More than a call takes whose bound is 0.3 s, on a busy machine."""


def open_store(url, space="0123456789abcdef", timeout_s=TIMEOUT_S, **options):
    from interlock.plugins.cache.tiers.remote import RemoteTier

    config = RemoteTierConfig(**{"url": url, "retry_s": RETRY_S, **options})
    return RemoteTier(space, config, timeout_s)


@pytest.fixture(scope="module")
def shared():
    with start_valkey() as server:
        yield server


@pytest.fixture
def url(shared):
    with contextlib.closing(shared.client()) as client:
        client.flushall()
    return shared.url


def seconds_of(call):
    begun_s = time.monotonic()
    call()
    return time.monotonic() - begun_s


def until(true, timeout_s=20.0):
    end_s = time.monotonic() + timeout_s
    while not true():
        assert time.monotonic() < end_s
        time.sleep(0.02)


def test_server_killed_in_mid_run_and_started_again_costs_its_entries_alone():
    with start_valkey() as server, contextlib.closing(open_store(server.url)) as store:
        until(lambda: put(store, 1))
        server.send(signal.SIGKILL)
        assert seconds_of(lambda: got(store, 1)) < MOST_S
        assert not got(store, 1)
        assert not put(store, 2)
        assert held(store, [1, 2]) == [False, False]
        assert store.failures["unreachable"] >= 1
        assert store.failures["paused"] >= 1
        server.start()
        until(lambda: put(store, 1))
        until(lambda: got(store, 1))
        assert not got(store, 2)


def test_server_that_hangs_is_left_alone_for_a_while_and_used_again():
    with start_valkey() as server, contextlib.closing(open_store(server.url)) as store:
        until(lambda: put(store, 1))
        server.send(signal.SIGSTOP)
        buffer = bytearray(PAYLOAD_BYTES)
        assert seconds_of(lambda: store.read(key_of(1), memoryview(buffer))) < MOST_S
        assert store.failures["timeout"] == 1
        refused_s = seconds_of(lambda: [got(store, 1) or put(store, 2) for _ in range(20)])
        assert refused_s < MOST_S
        assert store.failures["paused"] >= 20
        server.send(signal.SIGCONT)
        until(lambda: got(store, 1))
        assert buffer == bytes(PAYLOAD_BYTES), "an answer that came too late"


def test_answer_that_trickles_in_is_given_up_in_time():
    """Every byte comes soon, the last one never: no bound on one receive would end that."""

    def serve(listener):
        with contextlib.suppress(OSError):
            while True:
                connection, _ = listener.accept()
                threading.Thread(target=trickle, args=(connection,), daemon=True).start()

    def trickle(connection):
        with contextlib.suppress(OSError), connection:
            while asked := connection.recv(65536):
                if b"GET" not in asked:
                    connection.sendall(b"+PONG\r\n" * asked.count(b"*"))
                    continue
                connection.sendall(b"$1000000\r\n")
                while True:
                    connection.sendall(b"x")
                    time.sleep(0.05)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=serve, args=(listener,), daemon=True).start()
        address = f"redis://127.0.0.1:{listener.getsockname()[1]}/0?protocol=2"
        store = open_store(address)
        assert seconds_of(lambda: got(store, 1)) < MOST_S
        assert store.failures["timeout"] == 1
        store.close()


def test_full_server_refuses_and_keeps_what_it_has():
    settings = ("--maxmemory", "4mb", "--maxmemory-policy", "noeviction")
    with start_valkey(*settings) as server:
        with contextlib.closing(open_store(server.url, timeout_s=10.0)) as store:
            written = [put(store, number) for number in range(200)]
            assert written.count(False) == store.failures["full"] > 0
            assert [got(store, number) for number in range(200)] == written


def test_entries_that_the_server_evicted_are_misses():
    settings = ("--maxmemory", "4mb", "--maxmemory-policy", "allkeys-lru")
    with start_valkey(*settings) as server:
        with contextlib.closing(open_store(server.url, timeout_s=10.0)) as store:
            assert all(put(store, number) for number in range(200))
            read = [got(store, number) for number in range(200)]
            assert 0 < read.count(True) < 200
            assert store.failures == {"gone": read.count(False)}
            assert store.used_bytes() == read.count(True) * PAYLOAD_BYTES


def test_engines_share_entries_of_their_model_only(url):
    first, second = (open_store(url, timeout_s=10.0) for _ in range(2))
    other = open_store(url, "fedcba9876543210", timeout_s=10.0)
    with contextlib.closing(first), contextlib.closing(second), contextlib.closing(other):
        assert put(first, 1)
        assert held(second, [1]) == [True]
        assert got(second, 1)
        assert held(other, [1]) == [False]
        assert not got(other, 1)


def test_old_entries_are_dropped_where_the_store_says_so(url):
    with contextlib.closing(open_store(url, timeout_s=10.0, ttl_s=0.2)) as store:
        assert put(store, 1)
        until(lambda: held(store, [1]) == [False])
        assert list(store.keys()) == []


def test_no_server_at_the_start_is_an_error_that_keeps_the_password(tmp_path):
    with pytest.raises(ConfigError, match="no server answered within") as refused:
        open_store("redis://user:secret@127.0.0.1:1/0")
    assert "secret" not in str(refused.value)
    assert "redis://user:...@127.0.0.1:1/0" in str(refused.value)


def test_wrong_password_is_an_error_at_the_start_and_a_miss_later(tmp_path):
    with start_valkey() as server, contextlib.closing(server.client()) as client:
        with contextlib.closing(open_store(server.url, timeout_s=10.0)) as store:
            assert put(store, 1)
            client.config_set("requirepass", "other")
            client.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
            until(lambda: not got(store, 1) and store.failures["permission"] >= 1)
            client.execute_command("AUTH", "other")
            client.config_set("requirepass", "")
            until(lambda: got(store, 1))


@pytest.mark.parametrize("url", ["localhost:6379", "http://localhost"])
def test_url_of_another_kind_is_refused(url):
    with pytest.raises(ValueError, match="does not start with redis://"):
        RemoteTierConfig(url=url)


def test_every_call_says_no_at_once_after_close(url):
    store = open_store(url)
    store.close()
    assert seconds_of(lambda: got(store, 1) or put(store, 1)) < MOST_S


@pytest.mark.parametrize(
    ("module", "package", "install"),
    [("remote", "redis", r"pip install 'interlock\[tiers\]'"),
     ("mooncake", "mooncake", "pip install mooncake-transfer-engine")],
)  # fmt: skip
def test_store_without_its_package_says_what_to_install(monkeypatch, module, package, install):
    for name in [one for one in sys.modules if one.split(".")[0] == package]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)
    where = f"interlock.plugins.cache.tiers.{module}"
    monkeypatch.delitem(sys.modules, where, raising=False)
    with pytest.raises(ConfigError, match=install):
        importlib.import_module(where)
