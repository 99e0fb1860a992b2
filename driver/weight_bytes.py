"""How much of a model's weights a step reads, and what a run read of weights and cache."""

import math

import torch

from interlock.core.ledger import StepLedger
from interlock.core.model import ModelDescription


def weight_bytes(model: ModelDescription, dtype: torch.dtype) -> int | None:
    """Bytes of all weights in `dtype`: what every step of a dense model reads.

    None for a mixture of experts (which experts a step reads depends on its tokens) and for a
    model without files.
    """
    if model.files is None:
        return None
    weights = model.files.weights()
    names = weights.names()
    if any(".experts." in name for name in names):
        return None
    return sum(math.prod(weights.shape(name) or ()) for name in names) * dtype.itemsize


def bytes_moved(ledger: StepLedger, weights: int, cache_per_token: int) -> int:
    """Bytes that a dense model had to read: all weights a step, and the committed context."""
    return ledger.steps * weights + ledger.context_read * cache_per_token
