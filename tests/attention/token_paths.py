"""Steps of requests whose rows are functions of their tokens, so that equal paths are comparable.

A path is a tuple of token ids. The inputs of its last token, in every layer, follow from the path
alone: whoever attends for the same path must get the same bits.
"""

from functools import cache
from zlib import crc32

import numpy as np
import torch

from interlock.core.cache_spec import CacheLayout
from interlock.core.planes import Planes, make_attend, make_attention_batch, tree_mask
from interlock.core.testing.attention_oracle import random_inputs, take
from interlock.plugins.attention.stored import RowWriter, new_rows
from interlock.plugins.executor.moves import move_entries

Path = tuple[int, ...]
CPU = torch.device("cpu")


class Request:
    """Committed tokens and the pages of a request, the same pages in every table."""

    def __init__(self, pages, committed=()):
        self.pages, self.path = pages, tuple(committed)


class Rows:
    """New tokens of a request in a step: `lead`, then a draft tree over them."""

    def __init__(self, request, lead, draft=None):
        self.request, self.lead, self.draft = request, tuple(lead), draft

    def paths(self):
        """The path of each new token."""
        found = [self.request.path + self.lead[: at + 1] for at in range(len(self.lead))]
        if self.draft is not None:
            for node, token in enumerate(self.draft.tokens):
                parent = self.draft.parents[node]
                before = (
                    found[len(self.lead) + parent] if parent >= 0 else found[len(self.lead) - 1]
                )
                found.append((*before, token))
        return found


class Layers:
    """Attention layers of one backend over one cache."""

    def __init__(self, backend, specs, dtype, page_size, num_pages):
        self.backend, self.specs, self.dtype, self.page_size = backend, specs, dtype, page_size
        layout = CacheLayout.of(backend.cache_groups(specs, 0))
        self.num_tables = len(layout.lifetimes)
        self.planes = Planes(layout, [num_pages] * self.num_tables, page_size, dtype, CPU)

    def step(self, rows):
        """{(layer, path): output} of every new token."""
        paths = [path for row in rows for path in row.paths()]
        columns = max(-(-(len(r.request.path) + len(r.paths())) // self.page_size) for r in rows)
        table = torch.zeros(len(rows), columns, dtype=torch.long)
        for at, row in enumerate(rows):
            table[at] = torch.tensor((row.request.pages + [0] * columns)[:columns])
        batch = make_attention_batch(
            row_offsets=np.cumsum([0, *(len(row.paths()) for row in rows)]).tolist(),
            starts=[len(row.request.path) for row in rows],
            positions=[len(path) - 1 for path in paths],
            page_tables=(table,) * self.num_tables,
            page_size=self.page_size,
            tree_masks={
                at: tree_mask(row.draft, len(row.paths()), CPU)
                for at, row in enumerate(rows)
                if row.draft is not None
            },
            device=CPU,
        )
        attend = make_attend(self.backend, self.backend.plan(batch), self.planes)
        outputs = {}
        for layer, spec in enumerate(self.specs):
            inputs = take([(inputs_of(spec, layer, path, self.dtype), 0, 1) for path in paths])
            for path, out_HV in zip(paths, attend(layer, spec, inputs), strict=True):
                outputs[layer, path] = out_HV.clone()
        return outputs

    def commit(self, row, accepted=()):
        """Keep the lead tokens and a path of draft nodes, moved to where committed ones belong."""
        request, first = row.request, len(row.request.path) + len(row.lead)
        for table in range(self.num_tables):
            move_entries(
                self.planes,
                table,
                np.array(request.pages, dtype=np.int32),
                [first + node for node in accepted],
                [first + place for place in range(len(accepted))],
            )
        request.path += row.lead + tuple(row.draft.tokens[node] for node in accepted)


def alone(make, specs, dtype, path):
    """{layer: output} of a path's last token: decoded alone, after the others token by token."""
    pages = list(range(-(-len(path) // 16)))
    layers = Layers(make(), specs, dtype, page_size=16, num_pages=len(pages))
    for layer, spec in enumerate(specs):
        before = [inputs_of(spec, layer, path[:end], dtype) for end in range(1, len(path))]
        planes = layers.planes.of_layer[layer]
        for at, inputs in enumerate(before):
            RowWriter().write(planes, torch.tensor([at]), new_rows(inputs, planes))
    outputs = layers.step([Rows(Request(pages, path[:-1]), path[-1:])])
    return {layer: outputs[layer, path] for layer in range(len(specs))}


@cache
def inputs_of(spec, layer, path, dtype):
    """Inputs of a path's last token."""
    seed = crc32(repr((layer, path)).encode())
    return random_inputs(spec, 1, dtype, np.random.default_rng(seed))
