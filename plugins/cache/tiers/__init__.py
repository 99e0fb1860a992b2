"""Stores of cached pages beyond the device: their options."""

from dataclasses import dataclass
from typing import Literal

from interlock.core.options import option

MOST_MIB = 1 << 30


@dataclass(frozen=True)
class _Limited:
    """Options whose numbers are within limits."""

    name: str

    def __post_init__(self) -> None:
        """Raise ValueError naming the first option out of range."""
        for key, least, most in (
            ("capacity_mib", 1, MOST_MIB), ("segment_mib", 0, MOST_MIB),
            ("buffer_mib", 1, MOST_MIB), ("threads", 1, 256), ("retry_s", 0.0, 86400.0),
            ("ttl_s", 0.0, 1e9),
        ):  # fmt: skip
            value = getattr(self, key, least)
            if not least <= value <= most:
                raise ValueError(f"{key}={value} is not from {least} to {most}")


@dataclass(frozen=True)
class _Outside(_Limited):
    """Options of every store outside the process."""

    checksum: Literal["auto", "xxh3", "crc32"] = option(
        "auto",
        "of what is stored. xxh3: 128 bits, the package xxhash; crc32: 32 bits, slower; auto: xxh3 "
        "where it is installed",
    )
    threads: int = option(4, "calls at the same time: files, connections")
    retry_s: float = option(5.0, "seconds without a call after one that hung or found nobody")


@dataclass(frozen=True)
class CPUTierConfig(_Limited):
    """Memory of the CPU, in one block of equal slots."""

    name: str = "cpu"
    capacity_mib: int = option(2048, "memory for pages; the system gives it as it is used")


@dataclass(frozen=True)
class DiskTierConfig(_Outside):
    """Files of a local folder, one for each page. They outlive the process."""

    name: str = "disk"
    directory: str = option(
        "~/.cache/interlock/kv", "folder of this process alone; other files in it are left alone"
    )
    capacity_mib: int = option(8192, "payloads in the folder, of every model and version")
    sync: bool = option(False, "a file's bytes are on the disk before the file has its name")


@dataclass(frozen=True)
class RemoteTierConfig(_Outside):
    """A Redis or Valkey server, which evicts by its own rule. Engines may share it."""

    name: str = "remote"
    url: str = option(
        "redis://localhost:6379/0", "of the server: redis://, rediss:// (TLS) or unix://"
    )
    ttl_s: float = option(0.0, "the server drops an entry so long after it was written; 0: never")

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.url.startswith(("redis://", "rediss://", "unix://")):
            raise ValueError("url does not start with redis://, rediss:// or unix://")


@dataclass(frozen=True)
class MooncakeTierConfig(_Outside):
    """A Mooncake store: the memory that its clients lend, this process among them."""

    name: str = "mooncake"
    master: str = option("localhost:50051", "host:port of the store's master")
    metadata_server: str = option(
        "P2PHANDSHAKE", "where the transfer engine's metadata is: P2PHANDSHAKE, http:// or etcd://"
    )
    hostname: str = option("localhost", "how the other clients reach this process")
    protocol: Literal["tcp", "rdma"] = option("tcp", "how bytes travel")
    devices: str = option("", "of protocol=rdma, with commas between them")
    segment_mib: int = option(512, "memory that this process lends to the store; 0: none")
    buffer_mib: int = option(64, "memory through which bytes come and go; a payload must fit")
