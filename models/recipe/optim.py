"""Optimiser and schedule: Muon for matrices, AdamW for embeddings and norms."""

import math
from collections.abc import Sequence

import torch
from torch import nn

MATRIX_LR = 0.02
OTHER_LR = 3e-3
WARM_UP_SHARE = 0.03


def make_optimizers(
    model: nn.Module, scale: float = 1.0, tables: Sequence[str] = ("embed_tokens",)
) -> list[torch.optim.Optimizer]:
    """Muon (torch.optim.Muon) on hidden matrices, AdamW on the rest; rates scaled by `scale`.

    `tables` are parts of the names of matrices whose rows are a vocabulary's: AdamW's as well.
    """
    trainable = {n: p for n, p in model.named_parameters() if p.requires_grad}
    hidden = {n for n, p in trainable.items() if p.ndim == 2 and not any(t in n for t in tables)}
    matrices = [p for n, p in trainable.items() if n in hidden]
    others = [p for n, p in trainable.items() if n not in hidden]
    optimizers: list[torch.optim.Optimizer] = []
    if matrices:
        optimizers.append(
            torch.optim.Muon(matrices, lr=MATRIX_LR * scale, weight_decay=0.0, momentum=0.95)
        )
    if others:
        optimizers.append(
            torch.optim.AdamW(others, lr=OTHER_LR * scale, betas=(0.9, 0.95), weight_decay=0.0)
        )
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["peak_lr"] = group["lr"]
    return optimizers


def set_learning_rate(optimizers: list[torch.optim.Optimizer], step: int, steps: int) -> None:
    """Linear warm-up, then half a cosine down to 2 % of the peak."""
    warm_up = max(1, round(WARM_UP_SHARE * steps))
    progress = max(0.0, (step - warm_up) / max(1, steps - warm_up))
    factor = min(1.0, (step + 1) / warm_up) * (0.51 + 0.49 * math.cos(math.pi * progress))
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["lr"] = group["peak_lr"] * factor
