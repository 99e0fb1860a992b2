"""Tile sizes of the attention kernels: as large as registers allow.

docs/kernels.md shows what they use; no GPU was there to tune them on.
"""

from typing import NamedTuple

MOST_SPLITS = 32
SPLIT_ENTRIES = 256
"""Entries that are worth a split of their own."""
PROGRAMS = 512
"""Programs that fill a GPU: about four for each of an H100's 132 multiprocessors."""


class Tiles(NamedTuple):
    """Rows (queries times heads; products have at least 16) and entries of a tile, and how a
    program runs it."""

    rows: int
    entries: int
    num_warps: int
    num_stages: int


def prefill_tiles(group: int, size: int, item_bytes: int, architecture: int) -> Tiles:
    """For head sizes padded to `size`, operands of `item_bytes`, and sm_`architecture`."""
    if item_bytes > 2:
        tiles = Tiles(16, 16, 8, 1) if size > 128 else Tiles(32, 32, 4 if size <= 64 else 8, 1)
    elif not 90 <= architecture < 120:  # sm_86, sm_89 and sm_120 have 99 KiB of shared memory
        tiles = Tiles(128, 64, 8, 2) if size <= 64 else Tiles(128, 32, 8, 2)
        tiles = Tiles(64, 32, 8, 1) if size > 128 else tiles
    else:
        tiles = Tiles(128, 64 if size <= 128 else 32, 4 if size <= 64 else 8, 2)
    return _with_rows(tiles, group)


def short_tiles(group: int, size: int, item_bytes: int, one_token: bool) -> Tiles:
    """For decode (one token a row) and verification."""
    if item_bytes > 2:
        tiles = Tiles(16, 32, 8, 1) if size <= 128 else Tiles(16, 16, 4 if one_token else 8, 1)
    elif one_token:
        tiles = Tiles(16, 64 if size <= 128 else 32, 4, 3)
    elif size > 128:
        tiles = Tiles(32, 32, 4, 2)
    else:
        tiles = Tiles(64, 64, 4, 2) if size <= 64 else Tiles(64, 32, 8, 2)
    return _with_rows(tiles, group)


def block_of(size: int) -> int:
    """Columns of a tile: a power of two, and at least what a product needs."""
    return max(16, 1 << (size - 1).bit_length())


def splits_of(programs: int, entries: int) -> int:
    """How many programs share a row of at most `entries`, beside `programs` blocks of queries."""
    wanted = min(MOST_SPLITS, -(-entries // SPLIT_ENTRIES), PROGRAMS // max(1, programs))
    return max(1, wanted)


def _with_rows(tiles: Tiles, group: int) -> Tiles:
    """All heads of a group are rows of one tile."""
    return tiles._replace(rows=max(tiles.rows, 1 << (group - 1).bit_length()))
