"""Root-mean-square norms, whole or spread over ranks."""

import torch
from torch import Tensor

from interlock.core.parallel import Ranks
from interlock.plugins.models.row_tiles import FAST, Rows


class RMSNorm:
    """x / rms(x) * weight, computed in fp32 or the wider model dtype (arXiv 1910.07467)."""

    def __init__(self, weight: Tensor, eps: float, rows: Rows = FAST) -> None:
        self.weight = weight
        self.eps = eps
        self.rows = rows

    def __call__(self, x: Tensor) -> Tensor:
        """Same shape and dtype as `x`, normalised over the last axis."""
        return self.rows.norm(x, self.weight, self.eps)


class SplitRMSNorm:
    """RMSNorm over an axis that is spread over ranks, each entry on `copies` of them."""

    def __init__(self, weight: Tensor, eps: float, total: int, copies: int, ranks: Ranks) -> None:
        self.weight = weight
        self.eps = eps
        self._count = total * copies
        self._ranks = ranks

    def __call__(self, x: Tensor) -> Tensor:
        """Same shape and dtype as `x`, this rank's part of the last axis."""
        wide = x.to(self.weight.dtype)
        squares = self._ranks.sum(wide.square().sum(-1, keepdim=True)) / self._count
        return (wide * torch.rsqrt(squares + self.eps) * self.weight).to(x.dtype)
