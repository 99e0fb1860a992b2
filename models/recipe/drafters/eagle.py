"""EAGLE-1 (arXiv 2401.15077), trained several drafting steps deep; the network is `recipe.eagle`.

Shapes: B windows, T tokens, E hidden size, V vocabulary, K drafts.
"""

from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F

from interlock.models.recipe.drafters.facts import (
    Drafter,
    TargetFacts,
    Window,
    agreement,
    soft_cross_entropy,
)
from interlock.models.recipe.eagle import EagleHead, save_head

STEP_DECAY = 0.9
FEATURE_WEIGHT = 0.5


class Head(Drafter):
    """The EAGLE-1 head."""

    kind = "eagle"
    lr_scale = 2.0
    depth = 7

    def __init__(self, target: TargetFacts, *, ttt: int = 4, intermediate: int = 0) -> None:
        """`ttt` drafting steps to unroll; MLP size (0: twice the hidden size)."""
        super().__init__()
        if not 1 <= ttt <= self.depth:
            raise ValueError(f"ttt={ttt} is not from 1 to {self.depth}")
        self.target = target
        self.ttt = ttt
        self.net = EagleHead(target.shape(intermediate or 2 * target.hidden))
        self.net.fc.token_scale = 1.0 / target.embed_VE.std().item()

    def unroll(self, window: Window, steps: int) -> list[Tensor]:
        """See `EagleHead.unroll`: row i of step k is draft k + 1 of the chain of row i - k."""
        embedded = self.target.embed(window.ids_BT[:, 1:])
        return self.net.unroll(embedded, window.features_BTE[:, :-1], steps)

    def loss(self, window: Window) -> tuple[Tensor, dict[str, float]]:
        """Step k adds STEP_DECAY**k times the cross-entropy to the target's law of the same token.

        FEATURE_WEIGHT times the smooth L1 distance of the estimated feature is added to each
        (arXiv 2401.15077, eq. 5).
        """
        features, mask, best = (
            x[:, 1:] for x in (window.features_BTE, window.mask_BT, window.best_BT)
        )
        with torch.no_grad():
            law_BTV = self.target.logits(features).float().softmax(-1)
        total, figures = torch.zeros(()), {}
        for k, estimate in enumerate(self.unroll(window, self.ttt)):
            logits = self.target.logits(estimate)[:, k:]
            entropy = soft_cross_entropy(logits, law_BTV[:, k:], mask[:, k:])
            apart = F.smooth_l1_loss(estimate[:, k:].float(), features[:, k:], reduction="none")
            kept = mask[:, k:].float()
            distance = (apart.mean(-1) * kept).sum() / kept.sum().clamp(min=1)
            total = total + STEP_DECAY**k * (entropy + FEATURE_WEIGHT * distance)
            figures[f"agree_{k + 1}"] = agreement(logits, best[:, k:], mask[:, k:])
        return total, figures

    def guess(self, window: Window) -> Tensor:
        """See `Drafter.guess`."""
        guesses_BTK = torch.zeros(*window.ids_BT.shape, self.depth, dtype=torch.long)
        for k, estimate in enumerate(self.unroll(window, self.depth)):
            rows = self.target.logits(estimate[:, k:]).argmax(-1)
            guesses_BTK[:, 1 : 1 + rows.shape[1], k] = rows
        return guesses_BTK

    def save(self, folder: Path) -> None:
        """The layout of SafeAILab's EAGLE heads."""
        save_head(self.net, folder, self.target.max_positions)
