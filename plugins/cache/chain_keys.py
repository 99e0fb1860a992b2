"""Keys of pages that depend on all rows so far: each is made of the key before it and a row.

Keys are functions of salt and rows alone, so every process computes the same ones.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from hashlib import blake2b, sha256
from typing import Any

import numpy as np
from numpy.typing import NDArray

from interlock.core.prefix_index import Run, Units

Keys = NDArray[Any]
"""One key a page; `tolist` makes them hashable."""
Words = NDArray[np.uint64]
KeyFunction = Callable[[bytes, bytes], bytes]
"""(key of the page before, or of the salt; this page's row) -> this page's key."""

_TAG = b"interlock/page_key/2"


class ChainKeys(ABC):
    """A way to compute keys."""

    trusted: bool = False
    """True: nobody can find two contents of one key, so equal keys are equal contents."""

    @abstractmethod
    def keys(self, salt: bytes, before: Keys, rows: Units) -> Keys:
        """One key for each row; `before` has the key of the page before them, or is empty at the
        start of a chain. Cutting a chain in two changes no key.
        """


def chained(chain: ChainKeys, salt: bytes, node: Run | None, used: int, rows: Units) -> Keys:
    """Keys of rows that follow the first `used` pages of a run that keeps keys."""
    kept = None if node is None else node.keys
    before = np.empty(0) if kept is None else kept[used - 1 : used]
    return chain.keys(salt, before, rows)


def root(salt: bytes, row_units: int) -> bytes:
    """What a chain starts from: salts and widths of rows are told apart, and from any row."""
    label = b"%s:%d:%d:" % (_TAG, row_units, len(salt))
    return sha256(label + salt).digest()


def words(keys: Keys) -> Words:
    """The first 64 bits of each key."""
    if keys.dtype == np.uint64:
        return keys
    size = keys.dtype.itemsize
    wide = np.zeros((len(keys), 8), dtype=np.uint8)
    wide[:, :size] = keys.view(np.uint8).reshape(len(keys), size)[:, :8]
    return wide.reshape(-1).view(np.uint64)


class FastKeys(ChainKeys):
    """64-bit keys by array arithmetic: about a nanosecond a token. Collisions can be made.

    A row's word is a sum of its units times odd constants, mixed so that every bit of it depends
    on all of them. Keys are K[i] = K[i - 1] * B + word[i] modulo 2**64, which a running sum of
    word[j] * B**-j gives for many pages at once.
    """

    def __init__(self) -> None:
        self._factors = np.empty(0, dtype=np.uint64)
        self._powers = _powers(_BASE, _AT_ONCE + 1)
        self._inverses = _powers(pow(_BASE, -1, 2**64), _AT_ONCE + 1)

    def keys(self, salt: bytes, before: Keys, rows: Units) -> Keys:
        """See ChainKeys: uint64."""
        count, width = rows.shape
        if width != len(self._factors):
            self._factors = _constants(width)
        if not len(before):
            before = np.frombuffer(root(salt, width)[:8], dtype="<u8")
        terms = _mixed(rows.view(np.uint64) @ self._factors)
        for start in range(0, count, _AT_ONCE):
            some = terms[start : start + _AT_ONCE]
            sums = np.cumsum(some * self._inverses[1 : len(some) + 1], dtype=np.uint64)
            some[:] = (sums + before) * self._powers[1 : len(some) + 1]
            before = some[-1:]
        return np.asarray(terms)


_AT_ONCE = 4096
"""Pages of one running sum: the powers take memory, whatever is kept."""
_BASE = 0x9E3779B97F4A7C15
"""Odd, so that it has an inverse; 2**64 over the golden ratio."""


def _constants(count: int) -> Words:
    """Odd constants without a pattern: a counter, mixed."""
    steps = np.arange(1, count + 1, dtype=np.uint64) * np.uint64(_BASE)
    return _mixed(steps) | np.uint64(1)


def _powers(base: int, count: int) -> Words:
    factors = np.full(count, base, dtype=np.uint64)
    factors[0] = 1
    return np.multiply.accumulate(factors)


def _mixed(bits: Words) -> Words:
    """The finaliser of splitmix64 (Steele, Lea and Flood, OOPSLA 2014): one-to-one."""
    bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return bits ^ (bits >> np.uint64(31))


class DigestKeys(ChainKeys):
    """One call of a key function a page."""

    def __init__(self, function: KeyFunction, size: int, trusted: bool) -> None:
        """The function gives `size` bytes."""
        self._function = function
        self._dtype = np.dtype(f"V{size}")
        self.trusted = trusted

    def keys(self, salt: bytes, before: Keys, rows: Units) -> Keys:
        """See ChainKeys: so many bytes."""
        key = before[0].tobytes() if len(before) else root(salt, rows.shape[1])
        data = rows.astype("<i8", copy=False).tobytes()
        width = 8 * rows.shape[1]
        digests = []
        for start in range(0, len(data), width):
            key = self._function(key, data[start : start + width])
            digests.append(key)
        return np.frombuffer(b"".join(digests), dtype=self._dtype)


def blake2b_key(parent: bytes, row: bytes) -> bytes:
    """A 32-byte BLAKE2b digest of the parent's key and the row."""
    return blake2b(parent + row, digest_size=32).digest()


def sha256_key(parent: bytes, row: bytes) -> bytes:
    """A SHA-256 digest of the parent's key and the row."""
    return sha256(parent + row).digest()


CHAINS: dict[str, Callable[[], ChainKeys]] = {
    "fast": FastKeys,
    "blake2b": lambda: DigestKeys(blake2b_key, 32, trusted=True),
    "sha256": lambda: DigestKeys(sha256_key, 32, trusted=True),
}
