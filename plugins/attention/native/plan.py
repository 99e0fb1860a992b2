"""A paged plan whose rows the compiled kernels answer; where the processor has none for long rows
they keep torch's layout."""

import numpy as np
import torch
from torch import Tensor

from interlock.core.attention import AttentionBatch
from interlock.plugins.attention.native.long_rows import LongRows
from interlock.plugins.attention.native.rows import Ints, RowFacts, Shape, ShortRows
from interlock.plugins.attention.paged import BATCHED_TOKENS, PagedPlan, RowGroup


class NativePlan(PagedPlan):
    """Short rows are those that the torch layout would pad and run together."""

    def __init__(self, batch: AttentionBatch) -> None:
        super().__init__(batch)
        has_R = self.new_R > 0
        self._is_short_R = has_R & (self.new_R <= BATCHED_TOKENS)
        self._is_short_R[list(batch.tree_masks)] = True
        self._long = tuple(np.flatnonzero(has_R & ~self._is_short_R).tolist())
        self._tokens: dict[tuple[int, ...], Tensor] = {}
        self._short: dict[tuple[int, Shape, tuple[int, ...] | None], ShortRows] = {}
        self._in_place: dict[tuple[int, Shape], LongRows] = {}

    def short_rows(
        self, table: int, shape: Shape, dtype: torch.dtype, only: tuple[int, ...] | None = None
    ) -> ShortRows:
        """The short rows (or those of `only`) as the kernel takes them.

        Queries are given in flat order: all of the step's, or those of `only` alone.
        """
        key = (table, shape, only)
        if key not in self._short:
            if only is None:
                index_R = np.flatnonzero(self._is_short_R)
            else:
                index_R = np.array(only, dtype=np.int64)
            self._short[key] = ShortRows(
                self.batch, table, self._facts(index_R, shape.window, only is not None), shape,
                self.write_slots[table], dtype,
            )  # fmt: skip
        return self._short[key]

    def long_rows(self, table: int, shape: Shape) -> LongRows | None:
        """The long rows as their kernel takes them; None: there are none."""
        if not self._long:
            return None
        key = (table, shape)
        if key not in self._in_place:
            index_R = np.array(self._long, dtype=np.int64)
            facts = self._facts(index_R, shape.window, compact=False)
            self._in_place[key] = LongRows(self.batch, table, facts, shape)
        return self._in_place[key]

    def is_short(self, row: int) -> bool:
        """True if the kernel takes the row."""
        return bool(self._is_short_R[row])

    def tokens_of(self, rows: tuple[int, ...]) -> Tensor | None:
        """Flat tokens [N] of these rows, in order; None: all of the step's."""
        if len(rows) == self.batch.num_rows:
            return None
        if rows not in self._tokens:
            offsets = self.batch.row_offsets
            flat = [token for row in rows for token in range(offsets[row], offsets[row + 1])]
            self._tokens[rows] = torch.tensor(flat, dtype=torch.long)
        return self._tokens[rows]

    def long_groups(self, table: int, window: int | None) -> list[RowGroup]:
        """The long rows, laid out for torch."""
        return self.groups(table, window, self._long) if self._long else []

    def _facts(self, index_R: Ints, window: int, compact: bool) -> RowFacts:
        token_R, new_R = self.offsets[index_R], self.new_R[index_R]
        start_R = self.starts_R[index_R]
        first_R = np.clip(start_R - window + 1, 0, start_R) if window else np.zeros_like(start_R)
        place_R = np.cumsum(new_R) - new_R if compact else token_R
        return RowFacts(index_R, token_R, new_R, start_R, first_R, place_R)
