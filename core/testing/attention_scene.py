"""A cache under test: requests with known inputs, layers that share steps, poison elsewhere."""

from collections.abc import Callable, Hashable
from dataclasses import fields, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from interlock.core.attention import AttentionBackend, AttentionBatch, CapturablePlan
from interlock.core.batch import Draft
from interlock.core.cache_spec import CacheLayout, Window
from interlock.core.model import Attend, AttentionInput, AttentionSpec
from interlock.core.planes import (
    Planes,
    make_attend,
    make_attention_batch,
    make_store,
    tree_mask,
)
from interlock.core.testing.attention_oracle import Work, answer, random_inputs, take
from interlock.core.testing.stored_rows import as_stored, poison

TOLERANCES = {
    # Outputs are averages of unit-variance values, so they are of order 1 and absolute bounds fit.
    torch.float64: 1e-12,  # 2^-53 times a few thousand; fails if anything on the way is fp32
    torch.float32: 1e-5,  # 2^-24 times a few hundred (sums, and 20 units of a fused exp)
    torch.float16: 4e-3,  # 2^-11 times 8, as in the next line
    torch.bfloat16: 3e-2,  # 2^-8 times 8: probabilities, MLA projections and the output round
}


class Scene:
    """Requests of `lengths` entries under one backend, with one layer per spec.

    `check_step` runs a step and compares every layer with the formula. While the backend runs,
    every slot but the committed entries of the step's own rows is NaN. Page 0 and one more belong
    to nobody; a request's pages are scattered; table entries of pages that fell out of a window
    are 0. Tables are as wide as the step needs, and at least `table_pages` (set it).

    Plans that can be captured are: a step whose rows, tokens, table width and shape key occurred
    before runs with the plan of that time, its tensors overwritten.
    """

    def __init__(
        self,
        backend: AttentionBackend,
        specs: tuple[AttentionSpec, ...],
        lengths: tuple[int, ...],
        page_size: int = 4,
        dtype: torch.dtype = torch.float64,
        device: str = "cpu",
        page_seed: int = 0,
    ) -> None:
        random = np.random.default_rng(1)
        self.backend, self.specs, self.page_size = backend, specs, page_size
        self.tolerance, self.device = TOLERANCES[dtype], torch.device(device)
        self.inputs = [[random_inputs(s, n, dtype, random) for n in lengths] for s in specs]
        self.committed = [0] * len(lengths)
        self.layout = CacheLayout.of(backend.cache_groups(specs, 0))
        needed = [-(-n // page_size) for n in lengths]
        total = 2 + sum(needed)
        shuffle = np.random.default_rng(page_seed)
        self.pages: list[list[list[int]]] = []
        for _ in self.layout.lifetimes:
            ids = 1 + shuffle.permutation(total - 1)[: sum(needed)]
            self.pages.append([part.tolist() for part in np.split(ids, np.cumsum(needed)[:-1])])
        counts = [total] * len(self.pages)
        self.planes = Planes(self.layout, counts, page_size, dtype, self.device)
        self.table_pages = 1
        self.captured: dict[Hashable, CapturablePlan] = {}
        self.replayed = 0

    def check_step(self, *work: Work, store_only: bool = False) -> list[Tensor]:
        """Every layer's [T, H, V], found right, as are the cache's bits; commits lead tokens.

        With `store_only` the step only writes its rows, which later ones read.
        """
        kept = self._all_planes()
        for layer in range(len(self.specs)):
            hidden = ~self._slots(layer, work, committed=True, new=False)
            for plane in self._planes_of(layer):
                poison(plane, hidden)
        poisoned = self._all_planes()
        outputs = self._run(work, make_store if store_only else make_attend)
        if store_only:
            assert not any(map(len, outputs)), "a step that only stores has no results"
        else:
            self._check_outputs(work, outputs)
        for layer in range(len(self.specs)):
            own = self._slots(layer, work, committed=False, new=True)
            for plane, before, old in zip(
                self._planes_of(layer), poisoned[layer], kept[layer], strict=True
            ):
                assert torch.equal(_bits(plane[~own]), _bits(before[~own])), "wrote another's slot"
                plane[~own] = old[~own]
        for item in work:
            self.committed[item.row] += item.lead
        return outputs

    def _run(self, work: tuple[Work, ...], make: Callable[..., Attend]) -> list[Tensor]:
        starts = [self.committed[item.row] for item in work]
        batch = make_attention_batch(
            row_offsets=np.cumsum([0, *(item.new for item in work)]).tolist(),
            starts=starts,
            positions=[
                start + item.depth(token)
                for start, item in zip(starts, work, strict=True)
                for token in range(item.new)
            ],
            page_tables=tuple(self._page_table(t, work) for t in range(len(self.pages))),
            page_size=self.page_size,
            tree_masks={
                at: _mask(item).to(self.device)
                for at, item in enumerate(work)
                if item.parents is not None or item.block
            },
            device=self.device,
        )
        attend = make(self.backend, self._plan(batch), self.planes)
        outputs = []
        for layer, spec in enumerate(self.specs):
            parts = [
                (self.inputs[layer][item.row], start, start + item.new)
                for start, item in zip(starts, work, strict=True)
            ]
            outputs.append(attend(layer, spec, _moved(take(parts), self.device)))
        return outputs

    def _plan(self, batch: AttentionBatch) -> Any:
        plan = self.backend.plan(batch)
        if not self.backend.capturable:
            return plan
        width = batch.page_tables[0].shape[1]
        shape = batch.num_rows, len(batch.positions), width, plan.shape_key
        first = self.captured.setdefault(shape, plan)
        self.replayed += first is not plan
        for static, fresh in zip(first.tensors, plan.tensors, strict=True):
            static.copy_(fresh)
        return first

    def _check_outputs(self, work: tuple[Work, ...], outputs: list[Tensor]) -> None:
        for layer, (spec, output) in enumerate(zip(self.specs, outputs, strict=True)):
            right = [
                answer(spec, self._stored_inputs(layer, item), self.committed[item.row], item)
                for item in work
            ]
            want = torch.from_numpy(np.concatenate(right))
            assert output.shape == want.shape
            torch.testing.assert_close(output.cpu().double(), want, rtol=0, atol=self.tolerance)

    def _stored_inputs(self, layer: int, item: Work) -> AttentionInput:
        """The row's inputs, those that the cache holds as it holds them."""
        live = self._live_pages(self.planes.tables[layer], item.row)
        entries = range(self.committed[item.row] + item.new)
        places = [(e, live[e // self.page_size], e % self.page_size) for e in entries]
        kept = [place for place in places if place[1] != 0]
        return as_stored(self.inputs[layer][item.row], self.planes.of_layer[layer], kept)

    def _live_pages(self, table: int, row: int) -> list[int]:
        """The request's pages, 0 in place of those that no later query can see."""
        lifetime, pages = self.layout.lifetimes[table], self.pages[table][row]
        lost = 0
        if isinstance(lifetime, Window):
            lost = max(0, self.committed[row] - lifetime.tokens + 1) // self.page_size
        return [0] * lost + pages[lost:]

    def _page_table(self, table: int, work: tuple[Work, ...]) -> Tensor:
        used = [-(-(self.committed[item.row] + item.new) // self.page_size) for item in work]
        width = max(self.table_pages, *used)
        rows = torch.zeros(len(work), width, dtype=torch.long)
        for at, item in enumerate(work):
            live = self._live_pages(table, item.row)[: used[at]]
            rows[at, : used[at]] = torch.tensor(live, dtype=torch.long)
        return rows.to(self.device)

    def _slots(self, layer: int, work: tuple[Work, ...], committed: bool, new: bool) -> Tensor:
        """bool [pages, page_size]: slots of the step's rows."""
        table = self.planes.tables[layer]
        plane = self._planes_of(layer)[0]
        chosen = torch.zeros(plane.shape[:2], dtype=torch.bool, device=self.device)
        for item in work:
            start = self.committed[item.row]
            live = self._live_pages(table, item.row)
            for entry in range(0 if committed else start, start + item.new if new else start):
                chosen[live[entry // self.page_size], entry % self.page_size] = True
        chosen[0] = False
        return chosen

    def _planes_of(self, layer: int) -> list[Tensor]:
        return list(self.planes.of_layer[layer].values())

    def _all_planes(self) -> list[list[Tensor]]:
        return [[p.clone() for p in self._planes_of(n)] for n in range(len(self.specs))]


def _mask(item: Work) -> Tensor:
    """bool [new, new]: which new tokens each new token sees."""
    if item.parents is not None:
        return tree_mask(Draft(item.parents, item.parents), item.new, torch.device("cpu"))
    seen = torch.zeros(item.new, item.new, dtype=torch.bool)
    for token in range(item.new):
        seen[token, item.path(token)] = True
    return seen


def _moved(inputs: AttentionInput, device: torch.device) -> AttentionInput:
    tensors = {f.name: getattr(inputs, f.name) for f in fields(inputs)}
    return replace(inputs, **{n: t.to(device) for n, t in tensors.items() if t is not None})


def _bits(tensor: Tensor) -> Tensor:
    return tensor.contiguous().view(torch.uint8)
