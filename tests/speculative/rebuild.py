"""Whether what a drafter leaves in the cache is what its committed rows alone would leave there.

Every step's committed rows are given to the drafter a second time with nothing to propose, over
planes of its own that begin full of NaNs: the same pages, the same batches, no speculation ever.
After each step both caches must hold the same bits in every entry of a committed row.
"""

import dataclasses

import numpy as np
import torch

from interlock.plugins.executor.drafting import StepContext
from interlock.plugins.executor.moves import copy_page


class Rebuilt:
    """Watches an engine whose drafter has cache rows of its own; `checked` counts rows compared.

    `within`: how far entries may differ, for drafters that take rows in together with what they
    draft, so that sums are formed in another order.
    """

    def __init__(self, engine, within=0.0):
        self.within = within
        executor = engine.executor
        self.parts, self.drafter = executor._parts, executor.drafter
        self.checked = 0
        self.drafted = {}
        """What was proposed after each sequence of committed rows: (request, end) -> Draft."""
        self.planes = self._blank(self.parts.planes)
        self._watch(executor)

    def _blank(self, planes):
        copy = object.__new__(type(planes))
        copy.__dict__ |= planes.__dict__
        copy.of_layer = {
            layer: {name: torch.full_like(plane, float("nan")) for name, plane in named.items()}
            for layer, named in planes.of_layer.items()
        }
        return copy

    def _watch(self, executor):
        execute, propose = executor.execute, self.drafter.propose

        def executing(plan):
            for copied in plan.batch.copies:
                copy_page(self.planes, copied.table, copied.source, copied.target)
            return execute(plan)

        def proposing(rows, context):
            drafts = propose(rows, context)
            idle = dataclasses.replace(rows, limits=(0,) * len(rows.limits))
            parts = dataclasses.replace(self.parts, planes=self.planes)
            propose(idle, StepContext(parts, context._batch, idle))
            for r in range(len(rows.limits)):
                self._compare(rows, context._batch, r)
                end = rows.starts[r] + rows.row_offsets[r + 1] - rows.row_offsets[r]
                self.drafted[context._batch.request_ids[r], end] = drafts[r]
            return drafts

        executor.execute, self.drafter.propose = executing, proposing

    def _compare(self, rows, batch, r):
        length = rows.row_offsets[r + 1] - rows.row_offsets[r]
        if length == 0:
            return
        entries = np.arange(rows.starts[r] + length)
        first = len(self.parts.decoder.description.attention)
        for layer in range(first, first + len(self.drafter.attention)):
            table = batch.tables[self.planes.tables[layer]][batch.slots[r]]
            pages = torch.from_numpy(table[entries // batch.page_size].astype("int64"))
            places = torch.from_numpy(entries % batch.page_size)
            for name, plane in self.parts.planes.of_layer[layer].items():
                kept = plane[pages, places]
                alone = self.planes.of_layer[layer][name][pages, places]
                same = torch.allclose(kept, alone, rtol=0, atol=self.within)
                assert same, f"layer {layer}, {name}, request {r}"
                self.checked += len(entries)
