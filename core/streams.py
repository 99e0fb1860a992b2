"""Counter-based random numbers: a draw depends on its key alone, never on what was drawn before.

Philox4x32-10 (Salmon, Moraes, Dror, Shaw: "Parallel random numbers: as easy as 1, 2, 3", SC 2011;
checked against the known answers of Random123). The key is the request's seed, the counter is
(position, position >> 32, purpose, sample).
"""

import hashlib
from collections.abc import Sequence
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

Words = NDArray[np.uint64] | NDArray[np.int64]
Uniforms = NDArray[np.float64]

_WORD = 0xFFFFFFFF
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_KEY_STEPS = (0x9E3779B9, 0xBB67AE85)
_ROUNDS = 10
_ROUND_KEYS_R21 = np.outer(range(_ROUNDS), _KEY_STEPS).astype(np.uint64)[:, :, None]
_FEW = 16
"""Up to here plain integers are faster than the hundred array operations (5 us against 140)."""


class Purpose(IntEnum):
    """What a number is drawn for; streams of different purposes are independent."""

    TARGET = 0
    """The target's token at a position (the only stream that plain decoding reads)."""
    DRAFT = 1
    ACCEPT = 2
    RESIDUAL = 3
    LENGTH = 4


def request_seed(run_seed: int, index: int) -> int:
    """The seed, in 0 .. 2**64 - 1, of the request at `index` of a run's workload."""
    text = f"interlock request {run_seed} {index}".encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little")


def sample_seed(seed: int, sample: int) -> int:
    """The seed of one sample of a request with this seed; sample 0 draws what n=1 draws."""
    if sample == 0:
        return seed
    text = f"interlock sample {seed} {sample}".encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little")


def uniform(seed: int, position: int, purpose: Purpose, sample: int = 0) -> float:
    """The number of this key, a multiple of 2**-53 in [0, 1).

    `seed` and `position` are in 0 .. 2**64 - 1 (a position is the index of the token drawn),
    `sample` numbers further draws at one position, below 2**32 (samples of a prompt have seeds of
    their own: `sample_seed`).
    """
    counter = (position & _WORD, position >> 32, int(purpose), sample)
    high, low, _, _ = philox(counter, (seed & _WORD, seed >> 32))
    return ((high << 21) | (low >> 11)) * 2.0**-53


def philox(counter: tuple[int, int, int, int], key: tuple[int, int]) -> tuple[int, int, int, int]:
    """The Philox4x32-10 block of 32-bit words."""
    a, b, c, d = counter
    key_a, key_c = key
    for _ in range(_ROUNDS):
        product_a, product_c = a * _MULTIPLIERS[0], c * _MULTIPLIERS[1]
        a, b = (product_c >> 32) ^ b ^ key_a, product_c & _WORD
        c, d = (product_a >> 32) ^ d ^ key_c, product_a & _WORD
        key_a, key_c = (key_a + _KEY_STEPS[0]) & _WORD, (key_c + _KEY_STEPS[1]) & _WORD
    return a, b, c, d


def uniforms(
    seeds: Sequence[int] | Words,
    positions: Sequence[int] | Words,
    purpose: Purpose,
    sample: int = 0,
) -> Uniforms:
    """`uniform` of each (seed, position) pair, bit for bit the same numbers."""
    seed_N = np.asarray(seeds, dtype=np.uint64)
    position_N = np.asarray(positions, dtype=np.uint64)
    if len(seed_N) <= _FEW:
        pairs = zip(seed_N.tolist(), position_N.tolist(), strict=True)
        return np.array([uniform(seed, at, purpose, sample) for seed, at in pairs], np.float64)
    word, half = np.uint64(_WORD), np.uint64(32)
    multipliers = np.array(_MULTIPLIERS, dtype=np.uint64)[:, None]
    keys_R2N = (np.stack([seed_N & word, seed_N >> half]) + _ROUND_KEYS_R21) & word
    even_2N = np.stack([position_N & word, np.full_like(position_N, int(purpose))])
    odd_2N = np.stack([position_N >> half, np.full_like(position_N, sample)])
    product_2N, high_2N, low_2N = np.empty((3, *even_2N.shape), dtype=np.uint64)
    for key_2N in keys_R2N:
        np.multiply(even_2N, multipliers, out=product_2N)
        np.right_shift(product_2N, half, out=high_2N)
        np.bitwise_xor(high_2N[::-1], odd_2N, out=even_2N)
        np.bitwise_xor(even_2N, key_2N, out=even_2N)
        np.bitwise_and(product_2N, word, out=low_2N)
        odd_2N = low_2N[::-1]
    bits_N = (even_2N[0] << np.uint64(21)) | (odd_2N[0] >> np.uint64(11))
    numbers_N: Uniforms = bits_N.astype(np.float64) * 2.0**-53
    return numbers_N
