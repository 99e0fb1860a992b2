"""What a feature drafter's passes after a step use: attention over pages, and draws."""

from collections.abc import Mapping, Sequence
from itertools import accumulate

import numpy as np
import torch
from torch import Tensor

from interlock.core.attention import AttentionBackend
from interlock.core.batch import Batch
from interlock.core.drafter import DraftContext, DraftRows, Drawn
from interlock.core.executor import ModelParts
from interlock.core.model import Attend, Decoder
from interlock.core.planes import Planes, make_attend, make_attention_batch, make_store
from interlock.core.streams import Purpose
from interlock.plugins.executor.sampling import SampledRows


def draft_keys(
    rows: DraftRows, requests: Sequence[int], positions: Sequence[int], nth: int = 0
) -> list[int]:
    """What stands for the position in the noise of candidates: (anchor, distance from it, nth).

    A position belongs to the drafts of several rounds; each of them has the anchor for itself.
    """
    keys = []
    for r, position in zip(requests, positions, strict=True):
        anchor = rows.starts[r] + rows.row_offsets[r + 1] - rows.row_offsets[r]
        keys.append(anchor | (position - anchor) << 32 | nth << 48)
    return keys


class StepContext(DraftContext):
    """Attention over the step's pages for a drafter's own passes; `caught_up_s` is when it said so.

    On ranks that follow another one, everything is as there.
    """

    def __init__(self, parts: ModelParts, batch: Batch, rows: DraftRows) -> None:
        self.decoder: Decoder = parts.decoder
        self.caught_up_s: float | None = None
        self._backend: AttentionBackend = parts.draft_attention
        self._planes: Planes = parts.planes
        self._device = parts.device
        self._batch = batch
        self._rows = rows
        self._clock_s = parts.clock_s
        self._tables: dict[tuple[tuple[int, ...], int], tuple[Tensor, ...]] = {}

    def attend(
        self,
        requests: Sequence[int],
        row_lengths: Sequence[int],
        starts: Sequence[int],
        positions: Sequence[int] | None = None,
        masks: Mapping[int, Tensor] | None = None,
        store_only: bool = False,
    ) -> tuple[Attend, Tensor]:
        """See DraftContext."""
        spans = [range(s, s + n) for s, n in zip(starts, row_lengths, strict=True)]
        if positions is None:
            positions = [entry for span in spans for entry in span]
        last = max((span.stop for span in spans), default=1)
        pages = -(-max(1, last) // self._batch.page_size)
        view = make_attention_batch(
            row_offsets=[0, *accumulate(row_lengths)],
            starts=starts,
            positions=positions,
            page_tables=self._tables_of(tuple(requests), pages),
            page_size=self._batch.page_size,
            tree_masks=masks or {},
            device=self._device,
        )
        make = make_store if store_only else make_attend
        return make(self._backend, self._backend.plan(view), self._planes), view.positions_T

    def _tables_of(self, requests: tuple[int, ...], pages: int) -> tuple[Tensor, ...]:
        """The first `pages` of these requests' page tables; the passes of a step share them."""
        key = requests, pages
        if key not in self._tables:
            slots = self._batch.slots[list(requests)]
            self._tables[key] = tuple(
                torch.from_numpy(table[slots, :pages].astype(np.int64)).to(self._device)
                for table in self._batch.tables
            )
        return self._tables[key]

    def draw(
        self, logits_RV: Tensor, requests: Sequence[int], positions: Sequence[int], nth: int = 0
    ) -> Drawn:
        """See DraftContext. Reads the tokens from the device."""
        chosen = list(requests)
        laws = SampledRows(
            logits_RV,
            [self._rows.params[r] for r in chosen],
            self._rows.seeds[chosen],
            draft_keys(self._rows, chosen, positions, nth),
            purpose=Purpose.DRAFT,
        )
        return Drawn(torch.tensor(laws.sample(), device=logits_RV.device), laws.laws())

    def caught_up(self) -> None:
        """See DraftContext."""
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        self.caught_up_s = self._clock_s()
