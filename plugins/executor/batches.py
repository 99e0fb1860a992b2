"""From a step's host batch to what attention reads on the device."""

import numpy as np
import torch
from torch import Tensor

from interlock.core.attention import AttentionBatch
from interlock.core.batch import Batch
from interlock.core.planes import make_attention_batch, tree_mask


def attention_batch(batch: Batch, device: torch.device) -> AttentionBatch:
    """The attention view of a step's batch."""
    tables = []
    ends = batch.starts + np.diff(batch.row_offsets)
    most_pages = max(1, -(-int(ends.max(initial=1)) // batch.page_size))
    for table in batch.tables:
        tables.append(torch.from_numpy(table[batch.slots, :most_pages].astype("int64")).to(device))
    return make_attention_batch(
        row_offsets=batch.row_offsets.tolist(),
        starts=batch.starts.tolist(),
        positions=batch.positions.tolist(),
        page_tables=tuple(tables),
        page_size=batch.page_size,
        tree_masks=tree_masks(batch, device),
        device=device,
    )


def tree_masks(batch: Batch, device: torch.device) -> dict[int, Tensor]:
    """The mask of each row that verifies a draft tree."""
    return {
        row: tree_mask(draft, int(batch.row_offsets[row + 1] - batch.row_offsets[row]), device)
        for row, draft in batch.drafts.items()
        if draft.parents is not None
    }
