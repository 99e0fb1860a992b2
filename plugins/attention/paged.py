"""How a step's rows are laid out for batched attention over pages: done once, used by all layers.

Entry e of a row lives in slot page_table[e // B] * B + e % B of a plane seen as [pages * B, ...].
Columns of the layout that no entry fills point at the row's own newest entry: they are masked, and
what they read is always a finite number that belongs to the row, never somebody else's page.

Legend: R rows, T tokens, Q queries and S gathered entries a row (padded), N real queries.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from interlock.core.attention import AttentionBatch

Ints = np.typing.NDArray[np.int64]
BATCHED_TOKENS = 32
"""Rows with at most this many new tokens are padded together; longer ones run alone."""
CPU_ENTRIES, GPU_ENTRIES = 4096, 1 << 18
"""Entries gathered at once for short rows: bounds the copy, which on a CPU should stay in cache."""
TILE_TOKENS = 512
"""Queries of a long row that share one mask: bounds the mask and skips entries they cannot see."""


@dataclass(frozen=True)
class Tile:
    """Queries that attend together to columns `first` .. `end` of their group's entries."""

    tokens_RQ: Tensor
    """Flat tokens; a row's missing queries repeat its last one."""
    first: int
    end: int
    mask_RQS: Tensor | None
    """What each query sees; None: everything, or (`causal`) column c is seen from query c on."""
    causal: bool
    real_N: Tensor | None
    """Which of the R * Q queries are real; None: all."""

    def scatter(self, result_RQHV: Tensor, out_THV: Tensor) -> None:
        """Put the results of the real queries where their tokens are."""
        result, tokens = result_RQHV.flatten(0, 1), self.tokens_RQ.flatten()
        if self.real_N is not None:
            result, tokens = result[self.real_N], tokens[self.real_N]
        out_THV.index_copy_(0, tokens, result)


@dataclass(frozen=True)
class RowGroup:
    """Rows whose entries are gathered together, and the queries that read them."""

    slots_RS: Tensor
    tiles: tuple[Tile, ...]


@dataclass(frozen=True)
class Row:
    """Host facts of one row: entries first .. start + new of the table are gathered."""

    index: int
    token: int
    new: int
    start: int
    first: int
    is_tree: bool

    @property
    def span(self) -> int:
        """Entries gathered."""
        return self.start + self.new - self.first


class PagedPlan:
    """Write slots of every page table, and row layouts made at the first layer that asks."""

    def __init__(self, batch: AttentionBatch) -> None:
        self.batch = batch
        self._groups: dict[tuple[int, int | None, tuple[int, ...] | None], list[RowGroup]] = {}
        self.offsets = np.array(batch.row_offsets, dtype=np.int64)
        self.starts_R = np.array(batch.starts, dtype=np.int64)
        self.new_R = self.offsets[1:] - self.offsets[:-1]
        row_T = np.repeat(np.arange(batch.num_rows), self.new_R)
        entry_T = np.arange(len(row_T)) + (self.starts_R - self.offsets[:-1])[row_T]
        page_T, offset_T = np.divmod(entry_T, batch.page_size)
        self.write_slots = tuple(
            _slots_at(pages_RP, row_T, page_T, offset_T, batch.page_size)
            for pages_RP in batch.page_tables
        )

    def groups(
        self, table: int, window: int | None, only: tuple[int, ...] | None = None
    ) -> list[RowGroup]:
        """The rows (or those of `only`) laid out for layers of this table and window."""
        key = (table, window, only)
        if key not in self._groups:
            self._groups[key] = self._lay_out(table, window, only)
        return self._groups[key]

    def rows(self, window: int | None) -> list[Row]:
        """Facts of every row that has new tokens."""
        batch = self.batch
        found = []
        for index, (token, end) in enumerate(pairwise(batch.row_offsets)):
            start = batch.starts[index]
            if token < end:
                oldest = 0 if window is None else batch.positions[token] - window + 1
                first = min(max(0, oldest), start)
                tree = index in batch.tree_masks
                found.append(Row(index, token, end - token, start, first, tree))
        return found

    def _lay_out(
        self, table: int, window: int | None, only: tuple[int, ...] | None
    ) -> list[RowGroup]:
        rows = [row for row in self.rows(window) if only is None or row.index in only]
        short = [row for row in rows if row.is_tree or row.new <= BATCHED_TOKENS]
        long = [row for row in rows if not row.is_tree and row.new > BATCHED_TOKENS]
        on_cpu = self.batch.positions_T.device.type == "cpu"
        alike_rows = split_alike(short, CPU_ENTRIES if on_cpu else GPU_ENTRIES)
        groups = [self._padded_group(alike, table, window) for alike in alike_rows]
        return groups + [self._long_group(row, table, window) for row in long]

    def _padded_group(self, rows: Sequence[Row], table: int, window: int | None) -> RowGroup:
        """Rows padded to the longest; positions of draft nodes decide what a window hides."""
        most_new, most_span = max(r.new for r in rows), max(r.span for r in rows)
        index, token, new, start, first = self._to_device(
            np.array([(r.index, r.token, r.new, r.start, r.first) for r in rows]).T[..., None]
        )
        entry_RS = first + self._arange(most_span)
        real_RS = entry_RS < start + new
        entry_RS = torch.where(real_RS, entry_RS, start + new - 1)
        step_RQ = torch.minimum(self._arange(most_new).expand(len(rows), -1), new - 1)
        tokens_RQ = token + step_RQ
        slots_RS = self._slots(table, index, entry_RS)
        real = [at * most_new + q for at, row in enumerate(rows) for q in range(row.new)]
        padded = len(real) < len(rows) * most_new
        real_N = self._to_device(np.array(real)) if padded else None
        if most_new == 1 and all(r.span == most_span for r in rows):
            return RowGroup(slots_RS, (Tile(tokens_RQ, 0, most_span, None, False, real_N),))
        seen_RQS = real_RS[:, None] & ((entry_RS - start)[:, None] <= step_RQ[..., None])
        position_RS = entry_RS.clone()
        for at, row in enumerate(rows):
            if row.is_tree:
                columns = slice(row.start - row.first, row.span)
                seen_RQS[at, :, columns] = self.batch.tree_masks[row.index][step_RQ[at]]
                position_RS[at, columns] = self.batch.positions_T[row.token : row.token + row.new]
        if window is not None:
            oldest_RQ = self.batch.positions_T[tokens_RQ] - window + 1
            seen_RQS &= position_RS[:, None] >= oldest_RQ[..., None]
        return RowGroup(slots_RS, (Tile(tokens_RQ, 0, most_span, seen_RQS, False, real_N),))

    def _long_group(self, row: Row, table: int, window: int | None) -> RowGroup:
        """One chain, whose positions are its entries: causal, or in tiles of queries."""
        slots_1S = self._slots(
            table,
            self._to_device(np.array([[row.index]])),
            row.first + self._arange(row.span)[None],
        )
        tokens_1Q = row.token + self._arange(row.new)[None]
        if row.start == 0 and (window is None or row.new <= window):
            return RowGroup(slots_1S, (Tile(tokens_1Q, 0, row.span, None, True, None),))
        tiles = []
        for begin in range(0, row.new, TILE_TOKENS):
            until = min(begin + TILE_TOKENS, row.new)
            oldest = 0 if window is None else max(0, row.start + begin - window + 1)
            first, end = max(oldest, row.first), row.start + until
            query_1Q1 = (row.start + begin + self._arange(until - begin))[None, :, None]
            key_11S = (first + self._arange(end - first))[None, None]
            seen_1QS = key_11S <= query_1Q1
            if window is not None:
                seen_1QS &= key_11S > query_1Q1 - window
            columns = first - row.first, end - row.first
            tiles.append(Tile(tokens_1Q[:, begin:until], *columns, seen_1QS, False, None))
        return RowGroup(slots_1S, tuple(tiles))

    def _slots(self, table: int, index_R1: Tensor, entry_RS: Tensor) -> Tensor:
        size = self.batch.page_size
        pages = self.batch.page_tables[table]
        return pages[index_R1, entry_RS // size] * size + entry_RS % size

    def _arange(self, count: int) -> Tensor:
        return torch.arange(count, device=self.batch.positions_T.device)

    def _to_device(self, values: "np.typing.NDArray[np.int64]") -> Tensor:
        return torch.from_numpy(values).to(self.batch.positions_T.device)


def _slots_at(pages_RP: Tensor, row_T: Ints, page_T: Ints, offset_T: Ints, size: int) -> Tensor:
    """Slots [T] of these entries. On a CPU numpy's operations cost a third of torch's."""
    if pages_RP.device.type == "cpu":
        return torch.from_numpy(pages_RP.numpy()[row_T, page_T] * size + offset_T)
    row, page, offset = torch.from_numpy(np.stack((row_T, page_T, offset_T))).to(pages_RP.device)
    slots_T: Tensor = pages_RP[row, page] * size + offset
    return slots_T


def split_alike(rows: Sequence[Row], most_entries: int) -> list[list[Row]]:
    """Short rows in lists that waste little when padded to their longest.

    Within a list, new tokens differ by less than a factor of two and entries by a quarter (or 64);
    padded, a list of several rows has at most `most_entries` entries.
    """
    lists: list[list[Row]] = []
    for row in sorted(rows, key=lambda r: ((r.new - 1).bit_length(), r.span)):
        last = lists[-1][0] if lists else None
        if (
            last is not None
            and (last.new - 1).bit_length() == (row.new - 1).bit_length()
            and row.span <= last.span + max(64, last.span // 4)
            and row.span * (len(lists[-1]) + 1) <= most_entries
        ):
            lists[-1].append(row)
        else:
            lists.append([row])
    return lists
