"""Which layers of the target a head reads, and how it fuses them.

Shapes: B sequences, T positions, X tapped layers, E hidden size.
"""

import torch
from torch import Tensor, nn


def default_taps(layers: int) -> tuple[int, ...]:
    """A low, the middle and a high layer; never the last, whose output others store normed."""
    return tuple(sorted({max(0, min(layer, layers - 2)) for layer in (1, layers // 2, layers - 2)}))


class TapFusion(nn.Module):
    """fc(cat of the tapped layers), each tap brought to unit size while training.

    Residual streams are tens of times larger than what a fresh layer adds to them, and later ones
    larger still: over raw taps one matrix learns the last tap first, and a head whose own residual
    starts from it learns the newest token last. `scale_X` is found from the first training windows:
    the median over rows, because the first rows of many models are far larger than all others.
    `weight` is the published matrix.
    """

    scale_X: Tensor

    def __init__(self, taps: int, hidden: int) -> None:
        super().__init__()
        self.matrix = nn.Linear(taps * hidden, hidden, bias=False)
        self.register_buffer("scale_X", torch.zeros(taps), persistent=False)

    def forward(self, taps_BTXE: Tensor) -> Tensor:
        """[B, T, E]."""
        if not self.scale_X.any():
            sizes_NX = taps_BTXE.float().square().mean(-1).sqrt().flatten(0, 1)
            self.scale_X.copy_(1.0 / sizes_NX.median(0).values.clamp(min=1e-6))
        return self.matrix((taps_BTXE.float() * self.scale_X[:, None]).flatten(2))

    @property
    def weight(self) -> Tensor:
        """[E, X E], for taps as the target writes them; before any was seen, as if at unit size."""
        if not self.scale_X.any():
            return self.matrix.weight
        return self.matrix.weight * self.scale_X.repeat_interleave(self.matrix.out_features)

    def set_weight(self, weight: Tensor) -> None:
        """Take the published matrix."""
        self.scale_X.fill_(1.0)
        self.matrix.weight.data.copy_(weight)
