"""Penalties, biases and masks applied to the rows of a step that have them.

Legend: M rows that have edits, X entries of their histories or bytes of their masks, R masked rows,
V vocabulary.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from interlock.core.logit_edits import NodeEdits
from interlock.core.request import SamplingParams

_BITS = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little")
_ADDED = np.where(_BITS == 1, 0.0, -np.inf)
"""What each byte of a mask adds to its eight logits: spreading by table is the fastest way."""


def edited_rows(
    logits_NV: Tensor, params: Sequence[SamplingParams], edits: Mapping[int, NodeEdits]
) -> tuple[list[int], Tensor]:
    """The rows that have edits, and their edited logits [M, V] in fp32 or wider.

    edits[i] are those of the rows from i on; params[i] are the parameters of row i.
    """
    rows = [first + n for first, edit in edits.items() for n in range(len(edit.counts_NE))]
    dtype = torch.promote_types(logits_NV.dtype, torch.float32)
    logits_MV = logits_NV[rows].to(dtype)
    _shift(logits_MV, [params[row] for row in rows], list(edits.values()))
    _mask(logits_MV, list(edits.values()))
    return rows, logits_MV


def _shift(logits_MV: Tensor, params: Sequence[SamplingParams], edits: Sequence[NodeEdits]) -> None:
    """Repetition (Keskar et al., CTRL, 2019, section 4.1), frequency, presence (OpenAI), bias."""

    def flat(parts: list[NDArray[Any]]) -> Tensor:
        return torch.from_numpy(np.concatenate(parts)).to(logits_MV.device)

    def spread(name: str) -> Tensor:
        return flat([np.tile(getattr(edit, name), len(edit.counts_NE)) for edit in edits])

    lengths = [len(edit.tokens_E) for edit in edits for _ in edit.counts_NE]
    rows_X, tokens_X = flat([np.repeat(np.arange(len(lengths)), lengths)]), spread("tokens_E")
    counts_X = flat([edit.counts_NE.reshape(-1) for edit in edits])
    factors = [(p.repetition_penalty, p.frequency_penalty, p.presence_penalty) for p in params]
    of_row_M3 = torch.tensor(factors, dtype=logits_MV.dtype, device=logits_MV.device)
    repetition_X, frequency_X, presence_X = of_row_M3[rows_X].unbind(-1)
    values_X = logits_MV[rows_X, tokens_X]
    penalised_X = torch.where(values_X > 0, values_X / repetition_X, values_X * repetition_X)
    values_X = torch.where((counts_X > 0) | spread("in_prompt_E"), penalised_X, values_X)
    values_X -= frequency_X * counts_X + presence_X * (counts_X > 0)
    logits_MV[rows_X, tokens_X] = values_X + spread("bias_E").to(logits_MV.dtype)


def _mask(logits_MV: Tensor, edits: Sequence[NodeEdits]) -> None:
    """-inf for every token that may not come."""
    masked_M = [edit.masks_NW is not None for edit in edits for _ in edit.counts_NE]
    rows = [row for row, masked in enumerate(masked_M) if masked]
    if not rows:
        return
    words_RW = np.concatenate([edit.masks_NW for edit in edits if edit.masks_NW is not None])
    bytes_X = torch.from_numpy(words_RW.view(np.uint8).reshape(-1)).to(logits_MV.device)
    table = torch.from_numpy(_ADDED).to(logits_MV)
    added_RV = table.index_select(0, bytes_X.int()).view(len(rows), -1)
    logits_MV[rows] += added_RV[:, : logits_MV.shape[-1]]
