"""The stores behind cache/tiers, each through the contract."""

import os
import tempfile
from pathlib import Path

import pytest

from interlock.core.testing.tier_contract import TierContract
from interlock.plugins.cache.tiers import DiskTierConfig, MooncakeTierConfig, RemoteTierConfig
from interlock.plugins.cache.tiers.cpu import CPUTier
from interlock.plugins.cache.tiers.disk import DiskTier
from interlock.plugins.cache.tiers.disk_files import TierFolder
from interlock.plugins.cache.tiers.envelope import HEADER
from tests.cache.servers import Valkey, start_mooncake_master, start_valkey

TIMEOUT_S = 10.0
"""Long enough for a busy machine: what happens when it is short has tests of its own."""


@pytest.fixture(scope="module")
def valkey():
    with start_valkey() as server:
        yield server


class TestCPU(TierContract):
    def make(self):
        return CPUTier(1 << 20)


class TestDisk(TierContract):
    durable = True
    damages = ("halved", "flipped", "flipped header", "emptied", "lengthened", "deleted")
    checksum, sync = "auto", False

    @pytest.fixture(autouse=True)
    def _folder(self):
        with tempfile.TemporaryDirectory() as folder:
            self.folder, self.count = Path(folder), 0
            yield

    def open(self, name):
        folder = TierFolder(str(self.folder / name), "0123456789abcdef")
        config = DiskTierConfig(capacity_mib=1, sync=self.sync, checksum=self.checksum)
        return DiskTier(folder, config, TIMEOUT_S)

    def make(self):
        self.count += 1
        return self.open(str(self.count))

    def reopen(self, store):
        store.close()
        return self.open(str(self.count))

    def damage(self, store, key, kind):
        [file] = (self.folder / str(self.count)).glob(f"*/{key.hex()[:2]}/{key.hex()[2:]}.kv1")
        if kind == "deleted":
            file.unlink()
            return
        bytes_ = bytearray(file.read_bytes())
        if kind.startswith("flipped"):
            bytes_[40 if "header" in kind else HEADER.size + 9] ^= 0x10
        size = {"halved": len(bytes_) // 2, "emptied": 0}.get(kind, len(bytes_))
        file.write_bytes(bytes(bytes_[:size]) + b"x" * (kind == "lengthened"))


class TestDiskWithCrc32(TestDisk):
    checksum, examples = "crc32", 5


class TestSyncedDisk(TestDisk):
    sync, examples = True, 5


class TestRemote(TierContract):
    examples = 8
    durable = True
    damages = ("halved", "flipped", "emptied", "lengthened", "deleted", "another type")

    @pytest.fixture(autouse=True)
    def _server(self, valkey: Valkey):
        self.server, self.space = valkey, ""

    def open(self):
        from interlock.plugins.cache.tiers.remote import RemoteTier

        return RemoteTier(self.space, RemoteTierConfig(url=self.server.url), TIMEOUT_S)

    def make(self):
        self.space = os.urandom(8).hex()
        return self.open()

    def reopen(self, store):
        store.close()
        return self.open()

    def damage(self, store, key, kind):
        name = f"interlock-kv1:{self.space}:{key.hex()}"
        client = self.server.client()
        bytes_ = bytearray(client.get(name))
        client.delete(name)
        bytes_[-7] ^= kind == "flipped"
        size = {"halved": len(bytes_) // 2, "emptied": 0}.get(kind, len(bytes_))
        if kind == "another type":
            client.rpush(name, b"list")
        elif kind != "deleted":
            client.set(name, bytes(bytes_[:size]) + b"x" * (kind == "lengthened"))
        client.close()


@pytest.fixture(scope="module")
def mooncake():
    with start_mooncake_master() as (address, _process):
        yield address


class TestMooncake(TierContract):
    examples = 3
    damages = ("deleted", "foreign")

    @pytest.fixture(autouse=True)
    def _master(self, mooncake):
        self.address, self.stores = mooncake, []
        self.space = ""

    def make(self):
        from interlock.plugins.cache.tiers.mooncake import MooncakeTier

        self.space = os.urandom(8).hex()
        config = MooncakeTierConfig(
            master=self.address, hostname="127.0.0.1", segment_mib=64, buffer_mib=16
        )
        return MooncakeTier(self.space, config, TIMEOUT_S)

    def damage(self, store, key, kind):
        from mooncake.store import MooncakeDistributedStore  # the store's own client is private

        name = f"interlock-kv1:{self.space}:{key.hex()}"
        other = MooncakeDistributedStore()
        assert (
            other.setup("127.0.0.1", "P2PHANDSHAKE", 64 << 20, 16 << 20, "tcp", "", self.address)
            == 0
        )
        assert other.remove(name, force=True) == 0
        if kind == "foreign":
            assert store._store.put(name, b"somebody else's value") == 0
        other.close()
