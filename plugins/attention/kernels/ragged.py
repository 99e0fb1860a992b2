"""A step's rows as kernels read them: one transfer to the device, no reads back.

Launches depend on what `shape_key` holds and on nothing else: numbers of rows and tokens, widths of
the page tables. Short rows (decode, verification) are served by one program a token, of which all
but those of the first token of a block of queries end at once; so a captured launch serves any
division of its tokens among its rows.

Legend: R rows, T tokens, S tokens of short rows.
"""

from collections.abc import Hashable, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from interlock.core.attention import AttentionBatch

SHORT_TOKENS = 32
"""A row with at most so many new tokens, or with a draft tree, is short."""
ALIGNED = 4
"""Integers that parts of the transfer are padded to, so that every part is 16-byte aligned."""
LEAST_MASK = 256
"""Mask entries that room is made for; room grows by powers of two, so that launches repeat."""

Ints = NDArray[np.int32]


class RaggedPlan:
    """Where every row's tokens and entries are, on the device, for all layers of a step."""

    def __init__(self, batch: AttentionBatch) -> None:
        self.batch = batch
        self.device = batch.positions_T.device
        new_R = np.diff(batch.row_offsets)
        short_R = new_R <= SHORT_TOKENS
        short_R[list(batch.tree_masks)] = True
        row_T = np.repeat(np.arange(batch.num_rows), new_R)
        self.long_rows = tuple(np.flatnonzero(~short_R).tolist())
        self.masks, mask_R = self._masks(batch.num_rows)
        parts = (batch.row_offsets, batch.starts, mask_R, row_T, np.flatnonzero(short_R[row_T]))
        self.integers, views = packed(parts, self.device)
        self.offsets_R1, self.starts_R, self.mask_R, self.row_T, self.short_S = views
        self.short_rows = batch.num_rows - len(self.long_rows)
        self._blocks: dict[int, Tensor] = {}
        self.tensors: tuple[Tensor, ...] = (
            self.integers, self.masks, batch.positions_T, *batch.page_tables
        )  # fmt: skip
        """Everything on the device whose content differs from step to step."""
        lengths = tuple((row, int(new_R[row])) for row in self.long_rows)
        widths = tuple(table.shape[1] for table in batch.page_tables)
        self.shape_key: Hashable = (
            batch.num_rows, len(row_T), len(self.short_S), widths, len(self.masks), lengths
        )  # fmt: skip
        """Plans with equal keys launch the same kernels over the same grids.

        Long rows are known by their lengths: their blocks are cut on the host.
        """

    @property
    def has_trees(self) -> bool:
        """True if some row's new tokens see only their ancestors."""
        return bool(self.batch.tree_masks)

    def on_device(self) -> AbstractContextManager[Any]:
        """Where kernels are launched: Triton takes the current device, not that of its tensors."""
        return torch.cuda.device(self.device) if self.device.type == "cuda" else nullcontext()

    def entries(self, table: int) -> int:
        """Entries that a row can have in this page table: what launches are sized by."""
        return self.batch.page_tables[table].shape[1] * self.batch.page_size

    def slots(self, table: int) -> Tensor:
        """int64 [T]: where each new token's row is in a plane seen as [pages * page_size, ...]."""
        size, row_T = self.batch.page_size, self.row_T.long()
        token_T = torch.arange(len(row_T), device=self.device)
        entry_T = self.starts_R[row_T].long() + token_T - self.offsets_R1[row_T]
        return self.batch.page_tables[table][row_T, entry_T // size] * size + entry_T % size

    def long_blocks(self, queries: int) -> Tensor:
        """int32 [blocks, 2]: (row, first query of the row) of each block of so many queries.

        A row's last blocks, which read most entries, come first: the last to end are small ones.
        """
        if queries not in self._blocks:
            offsets = self.batch.row_offsets
            blocks = [
                (row, first)
                for row in self.long_rows
                for first in range(0, offsets[row + 1] - offsets[row], queries)
            ]
            blocks.sort(key=lambda block: -block[1])
            flat = np.array(blocks, dtype=np.int32).reshape(-1)
            self._blocks[queries] = to_device(flat, self.device).view(-1, 2)
        return self._blocks[queries]

    def _masks(self, rows: int) -> tuple[Tensor, Ints]:
        """All trees' masks end to end (uint8), and where each row's begins: -1 for a chain."""
        mask_R = np.full(rows, -1, dtype=np.int32)
        parts: list[Tensor] = []
        at = 0
        for row, mask in sorted(self.batch.tree_masks.items()):
            mask_R[row] = at
            parts.append(mask.reshape(-1).view(torch.uint8))
            at += mask.numel()
        room = max(LEAST_MASK, 1 << (at - 1).bit_length()) if parts else 1
        parts.append(torch.zeros(room - at, dtype=torch.uint8, device=self.device))
        return torch.cat(parts), mask_R


def packed(parts: Sequence[Sequence[int] | NDArray[np.integer]], device: torch.device) -> tuple[
    Tensor, tuple[Tensor, ...]
]:  # fmt: skip
    """The parts in one int32 tensor on the device, made by one copy, and a view of each."""
    sizes = [len(part) for part in parts]
    places = np.cumsum([0, *(-(-size // ALIGNED) * ALIGNED for size in sizes)]).tolist()
    flat = np.zeros(places[-1], dtype=np.int32)
    for part, (begin, _), size in zip(parts, pairwise(places), sizes, strict=True):
        flat[begin : begin + size] = part
    whole = to_device(flat, device)
    views = [whole[at : at + size] for at, size in zip(places[:-1], sizes, strict=True)]
    return whole, tuple(views)


def to_device(values: Ints, device: torch.device) -> Tensor:
    """The values on the device, without waiting for it."""
    tensor = torch.from_numpy(values)
    if device.type != "cuda":
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)
