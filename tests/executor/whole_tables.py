"""An attention backend whose plans can be captured anywhere: every token reads its whole table.

Legend: T tokens, R rows, S entries of a table, J new tokens of a row, K key/value heads, G query
heads a key head, D head size, V value head size.
"""

from itertools import pairwise

import torch

from interlock.core.attention import AttentionBackend
from interlock.plugins.attention.stored import cache_groups_of


class WholeTablePlan:
    """Device tensors alone; no number of a step is kept on the host."""

    def __init__(self, batch):
        device = batch.positions_T.device
        self.page_size = batch.page_size
        lengths = [end - begin for begin, end in pairwise(batch.row_offsets)]
        longest = max(lengths)
        row_T = [row for row, length in enumerate(lengths) for _ in range(length)]
        sees_TJ = torch.zeros(len(row_T), longest, dtype=torch.bool)
        for row, begin in enumerate(batch.row_offsets[:-1]):
            for place in range(lengths[row]):
                mask = batch.tree_masks.get(row)
                seen = torch.arange(longest) <= place if mask is None else mask[place].cpu()
                sees_TJ[begin + place, : len(seen)] = seen
        ints = {"dtype": torch.long, "device": device}
        self.row_T = torch.tensor(row_T, **ints)
        self.starts_R = torch.tensor(batch.starts, **ints)
        self.first_R = torch.tensor(batch.row_offsets[:-1], **ints)
        self.sees_TJ = sees_TJ.to(device)
        self.positions_T = batch.positions_T
        self.page_tables = batch.page_tables
        self.tensors = (
            self.row_T, self.starts_R, self.first_R, self.sees_TJ, self.positions_T,
            *self.page_tables,
        )  # fmt: skip
        self.shape_key = longest, len(row_T), tuple(t.shape for t in self.page_tables)

    def write(self, table, plane, new):
        """Store the new tokens' rows."""
        place_T = torch.arange(len(new)) - self.first_R[self.row_T]
        entry_T = self.starts_R[self.row_T] + place_T
        page_T = self.page_tables[table][self.row_T, entry_T // self.page_size]
        plane[page_T, entry_T % self.page_size] = new

    def read(self, table, plane):
        """[T, S, ...] of each token's row."""
        return plane[self.page_tables[table][self.row_T]].flatten(1, 2)

    def seen(self, table, window):
        """bool [T, S]: which entries of its row each token sees."""
        entry_S = torch.arange(self.page_tables[table].shape[1] * self.page_size)
        new_TS = entry_S - self.starts_R[self.row_T][:, None]
        place_TS = new_TS.clamp(0, self.sees_TJ.shape[1] - 1)
        is_new_TS = (new_TS >= 0) & (new_TS < self.sees_TJ.shape[1])
        seen_TS = (new_TS < 0) | (is_new_TS & self.sees_TJ.gather(1, place_TS))
        if window is None:
            return seen_TS
        token_TS = (self.first_R[self.row_T][:, None] + place_TS).clamp(max=len(self.row_T) - 1)
        position_TS = torch.where(new_TS < 0, entry_S, self.positions_T[token_TS])
        return seen_TS & (position_TS > self.positions_T[:, None] - window)


class WholeTableAttention(AttentionBackend):
    """Form "heads" with windows and trees, straight from the formula over masked tables."""

    capturable = True

    def cache_groups(self, specs, first_layer):
        return cache_groups_of(specs, first_layer)

    def plan(self, batch):
        return WholeTablePlan(batch)

    def attend(self, spec, inputs, plan, table, planes):
        plan.write(table, planes["k"], inputs.k_TKD)
        plan.write(table, planes["v"], inputs.v_TKV)
        seen_TS = plan.seen(table, spec.window)[..., None, None]
        wide = torch.promote_types(inputs.q_THD.dtype, torch.float32)
        k_TSKD, v_TSKV = (
            plan.read(table, planes[name]).to(wide).masked_fill(~seen_TS, 0) for name in ("k", "v")
        )
        q_TKGD = inputs.q_THD.to(wide).unflatten(1, (spec.num_kv_heads, -1))
        scores_TKGS = torch.einsum("tkgd,tskd->tkgs", q_TKGD, k_TSKD) * spec.scale
        hidden_T11S = ~seen_TS[..., 0, 0][:, None, None]
        weights_TKGS = scores_TKGS.masked_fill(hidden_T11S, -torch.inf).softmax(-1)
        out_TKGV = torch.einsum("tkgs,tskv->tkgv", weights_TKGS, v_TSKV)
        return out_TKGV.flatten(1, 2).to(inputs.q_THD.dtype)
