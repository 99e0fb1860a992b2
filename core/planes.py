"""Device storage of the cache, and the bridge from a host `Batch` to what attention reads.

Legend: P pages, B tokens in a page, R rows, T tokens.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from interlock.core.attention import AttentionBackend, AttentionBatch
from interlock.core.batch import Draft
from interlock.core.cache_spec import CacheLayout
from interlock.core.model import Attend, AttentionInput, AttentionSpec, HeadsInput


def torch_dtype(name: str) -> torch.dtype:
    """The torch dtype of this name; KeyError is the caller's to prevent."""
    dtype = getattr(torch, name)
    assert isinstance(dtype, torch.dtype)
    return dtype


class Planes:
    """Every plane of every layer: [P + 1, B, *shape], and which page table addresses it.

    Page P, `scratch` of the table, is nobody's: no allocator gives it out. What must be written
    somewhere and is never read, like the rows that pad a step, goes there.
    """

    def __init__(
        self,
        layout: CacheLayout,
        num_pages: Sequence[int],
        page_size: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.layout = layout
        self.page_size = page_size
        self.scratch = tuple(num_pages)
        self.tables: dict[int, int] = {}
        self.of_layer: dict[int, dict[str, Tensor]] = {}
        for group in layout.groups:
            for layer in group.layers:
                table = layout.table_of(layer)
                self.tables[layer] = table
                self.of_layer[layer] = {
                    plane.name: torch.zeros(
                        (num_pages[table] + 1, page_size, *plane.shape),
                        dtype=torch_dtype(plane.dtype) if plane.dtype else dtype,
                        device=device,
                    )
                    for plane in group.planes
                }


def make_attention_batch(
    row_offsets: Sequence[int],
    starts: Sequence[int],
    positions: Sequence[int],
    page_tables: tuple[Tensor, ...],
    page_size: int,
    tree_masks: Mapping[int, Tensor],
    device: torch.device,
) -> AttentionBatch:
    """An AttentionBatch from host values and page tables already on the device."""
    return AttentionBatch(
        row_offsets=tuple(row_offsets),
        starts=tuple(starts),
        positions=tuple(positions),
        positions_T=torch.tensor(positions, dtype=torch.long, device=device),
        page_tables=page_tables,
        page_size=page_size,
        tree_masks=tree_masks,
    )


def tree_mask(draft: Draft, num_tokens: int, device: torch.device) -> Tensor:
    """bool [n, n]: which new tokens of the row each new token sees (itself and its ancestors).

    The row's first num_tokens - len(draft) tokens are committed and form a chain.
    """
    lead = num_tokens - len(draft.tokens)
    mask = torch.ones(num_tokens, num_tokens, dtype=torch.bool).tril()
    parents = draft.parents or ()
    for node, parent in enumerate(parents):
        row = lead + node
        mask[row] = mask[lead + parent] if parent >= 0 else mask[lead - 1]
        mask[row, row] = True
    return mask.to(device)


def make_attend(backend: AttentionBackend, plan: Any, planes: Planes) -> Attend:
    """The callback a decoder calls once per layer, with one plan of the backend for all of them."""

    def attend(layer: int, spec: AttentionSpec, inputs: AttentionInput) -> Tensor:
        return backend.attend(spec, inputs, plan, planes.tables[layer], planes.of_layer[layer])

    return attend


def make_store(backend: AttentionBackend, plan: Any, planes: Planes) -> Attend:
    """The same for rows that are only written: nobody reads what it returns, [0, H, V]."""

    def store(layer: int, spec: AttentionSpec, inputs: AttentionInput) -> Tensor:
        backend.store(spec, inputs, plan, planes.tables[layer], planes.of_layer[layer])
        queries = inputs.q_THD if isinstance(inputs, HeadsInput) else inputs.q_nope_THN
        return queries.new_empty(0, spec.num_heads, spec.v_head_dim)

    return store
