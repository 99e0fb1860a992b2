"""A disk tier in a folder, its files, and system calls that fail."""

import os
import time

from interlock.core.testing.tier_contract import PAYLOAD_BYTES, key_of
from interlock.plugins.cache.tiers import DiskTierConfig
from interlock.plugins.cache.tiers.disk import DiskTier
from interlock.plugins.cache.tiers.disk_files import TierFolder

SPACE, OTHER = "0123456789abcdef", "fedcba9876543210"
"""Names of what two models keep in one folder."""
FITS = (1 << 20) // PAYLOAD_BYTES
"""Entries in a store of the smallest capacity."""
TIMEOUT_S = 10.0
MOST_S = 1.0
"""More than any call takes whose bound is 0.05 s, on a busy machine."""


def open_store(folder, space=SPACE, timeout_s=TIMEOUT_S, **options):
    """The tier, of 1 MiB unless `options` say otherwise."""
    config = DiskTierConfig(**{"capacity_mib": 1, "retry_s": 0.0, **options})
    return DiskTier(TierFolder(str(folder), space), config, timeout_s)


def file_of(folder, number, space=SPACE):
    """Where an entry lies."""
    digits = key_of(number).hex()
    return folder / space / digits[:2] / f"{digits[2:]}.kv1"


def files_in(folder):
    """All of them but the lock."""
    return sorted(p for p in folder.rglob("*") if p.is_file() and p.name != "lock")


def failing(error):
    """A stand-in for a system call that fails."""

    def call(*_args, **_more):
        raise OSError(error, os.strerror(error))

    return call


def until(true, timeout_s=20.0):
    """Ask until it is so."""
    end_s = time.monotonic() + timeout_s
    while not true():
        assert time.monotonic() < end_s
        time.sleep(0.01)
