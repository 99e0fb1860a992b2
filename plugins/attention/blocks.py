"""How a step is cut so that a query meets the same products whatever else runs: by position.

Queries stand in blocks and entries in tiles of absolute positions: position p is always row p % Q
of its block and column p % S of its tile, and always attends over the same tiles. A draft tree is
run as its root-to-leaf paths, each a chain of its own in position order, as if it were accepted.
Tokens that see later ones too (a drafter's block) are one chain, seen up to where each says.

Legend: C tiles of all chains, B blocks of a group, Q queries of a block, S entries of a tile,
N real queries of a group, n blocks that still have tiles.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from interlock.core.attention import AttentionBatch
from interlock.plugins.attention.paged import PagedPlan

TILE = 64
"""Entries of a tile, S. A power of two, so that the blocks of a layer never straddle tiles."""
GROUP = 32
"""Blocks that run together, B at most: bounds memory."""

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Chain:
    """New tokens of one request in position order, of which the first `known` have a block already.

    `path` are their places among the request's new tokens; the first has position `start`. Token i
    of them sees the first `seen[i]`.
    """

    row: int
    token: int
    start: int
    path: Ints
    known: int
    seen: Ints


@dataclass(frozen=True)
class Step:
    """The next tile of each of the group's first n blocks (the others have no more)."""

    slots_nS: Tensor
    hidden_nQS: Tensor


@dataclass(frozen=True)
class BlockGroup:
    """Query blocks whose tiles run in step, those with most tiles first."""

    tokens_BQ: Tensor
    """Flat tokens; a row of a block that is not asked for repeats some token of the block."""
    real_N: Tensor
    """Which of the B * Q queries are asked for."""
    steps: tuple[Step, ...]


@dataclass(frozen=True)
class _Block:
    """Queries at the positions of one block, and their tiles; tile t is row base + t of C."""

    positions_Q: Ints
    last_Q: Ints
    """The newest position that each query sees."""
    tokens_Q: Ints
    real_Q: NDArray[np.bool_]
    base: int
    first_tile: int
    end_tile: int


class BlockPlan(PagedPlan):
    """Write slots of every page table, and blocks made at the first layer that asks."""

    def __init__(self, batch: AttentionBatch) -> None:
        super().__init__(batch)
        self._chains = [chain for row in range(batch.num_rows) for chain in chains(batch, row)]
        self._blocks: dict[tuple[int, int | None, int], list[BlockGroup]] = {}

    def blocks(self, table: int, window: int | None, queries: int) -> list[BlockGroup]:
        """All queries in blocks of `queries` for layers of this table and window."""
        key = (table, window, queries)
        if key not in self._blocks:
            self._blocks[key] = self._cut(table, window, queries)
        return self._blocks[key]

    def _cut(self, table: int, window: int | None, queries: int) -> list[BlockGroup]:
        entries: list[Ints] = []
        rows: list[int] = []
        blocks: list[_Block] = []
        for chain in self._chains:
            first_tile, entry_CS = _entries(chain, window, queries)
            blocks += _blocks(chain, window, queries, len(rows) - first_tile)
            entries.append(entry_CS)
            rows += [chain.row] * len(entry_CS)
        if not blocks:
            return []
        row_C1 = self._to_device(np.array(rows)[:, None])
        slots_CS = self._slots(table, row_C1, self._to_device(np.concatenate(entries)))
        blocks.sort(key=lambda block: block.first_tile - block.end_tile)
        return [
            self._group(blocks[at : at + GROUP], slots_CS, window)
            for at in range(0, len(blocks), GROUP)
        ]

    def _group(self, blocks: list[_Block], slots_CS: Tensor, window: int | None) -> BlockGroup:
        tokens_BQ = np.stack([block.tokens_Q for block in blocks])
        real_N = np.flatnonzero(np.stack([block.real_Q for block in blocks]))
        most = blocks[0].end_tile - blocks[0].first_tile
        return BlockGroup(
            self._to_device(tokens_BQ),
            self._to_device(real_N),
            tuple(self._step(blocks, at, slots_CS, window) for at in range(most)),
        )

    def _step(self, blocks: list[_Block], at: int, slots_CS: Tensor, window: int | None) -> Step:
        active = [block for block in blocks if block.first_tile + at < block.end_tile]
        tile_n = self._to_device(np.array([block.base + block.first_tile + at for block in active]))
        first_n = np.array([(block.first_tile + at) * TILE for block in active])
        query_nQ1 = self._to_device(np.stack([block.positions_Q for block in active]))[..., None]
        last_nQ1 = self._to_device(np.stack([block.last_Q for block in active]))[..., None]
        entry_n1S = (self._to_device(first_n)[:, None] + self._arange(TILE))[:, None]
        hidden_nQS = entry_n1S > last_nQ1
        if window is not None:
            hidden_nQS |= entry_n1S <= query_nQ1 - window
        return Step(slots_CS[tile_n], hidden_nQS)


def chains(batch: AttentionBatch, row: int) -> Iterator[Chain]:
    """The row's new tokens as chains: all of them, or one a leaf of its draft tree."""
    token, end = batch.row_offsets[row], batch.row_offsets[row + 1]
    start, mask = batch.starts[row], batch.tree_masks.get(row)
    if token == end:
        return
    places = np.arange(end - token)
    if mask is None:
        yield Chain(row, token, start, places, 0, places + 1)
        return
    sees = mask.cpu().numpy()
    if np.triu(sees, 1).any():
        seen = sees.sum(1)
        assert (sees == (places < seen[:, None])).all(), "a mask that is neither tree nor block"
        yield Chain(row, token, start, places, 0, seen)
        return
    done = np.zeros(end - token, dtype=np.bool_)
    for leaf in np.flatnonzero(sees.sum(0) == 1):
        path = np.flatnonzero(sees[leaf])
        yield Chain(row, token, start, path, int(done[path].sum()), np.arange(len(path)) + 1)
        done[path] = True


def _entries(chain: Chain, window: int | None, queries: int) -> tuple[int, Ints]:
    """Number of the chain's first tile, and the entry at each position of its tiles.

    Positions that no query of the chain sees (their pages may be gone) stand for its last token.
    """
    oldest = 0 if window is None else max(0, chain.start - window + 1)
    end = chain.start + len(chain.path)
    first_tile = _first_tile(chain.start // queries, window, queries)
    end_tile = (end - 1) // TILE + 1
    position = np.arange(first_tile * TILE, end_tile * TILE)
    entry = position.copy()
    entry[(position < oldest) | (position >= end)] = chain.start + chain.path[-1]
    new = (position >= chain.start) & (position < end)
    entry[new] = chain.start + chain.path
    return first_tile, entry.reshape(-1, TILE)


def _blocks(chain: Chain, window: int | None, queries: int, base: int) -> Iterator[_Block]:
    end = chain.start + len(chain.path)
    first_block = (chain.start + chain.known) // queries
    for number in range(first_block, (end - 1) // queries + 1):
        position = np.arange(number * queries, (number + 1) * queries)
        real = (position >= chain.start + chain.known) & (position < end)
        place = np.clip(position - chain.start, chain.known, len(chain.path) - 1)
        last = np.where(real, chain.start + chain.seen[place] - 1, position)
        yield _Block(
            positions_Q=position,
            last_Q=last,
            tokens_Q=chain.token + chain.path[place],
            real_Q=real,
            base=base,
            first_tile=_first_tile(number, window, queries),
            end_tile=max(int(last.max()), int(position[-1])) // TILE + 1,
        )


def _first_tile(block: int, window: int | None, queries: int) -> int:
    """The tile of the oldest position that a query of this block may see."""
    return 0 if window is None else max(0, block * queries - window + 1) // TILE
