"""Medusa: heads that guess tokens further ahead from one feature (arXiv 2401.10774).

Head k reads the final-norm feature f_i, whose own head predicts the token at i + 1, and predicts
the token at i + 2 + k. Shapes: B windows, T tokens, E hidden size, V vocabulary, K heads.
"""

from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from interlock.models.recipe.drafters.facts import (
    Drafter,
    TargetFacts,
    Window,
    agreement,
    soft_cross_entropy,
)
from interlock.models.recipe.drafters.files import write_head

HEAD_DECAY = 0.8


class ResBlock(nn.Module):
    """x + silu(linear(x)), the identity at first."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.linear = nn.Linear(hidden, hidden)
        nn.init.zeros_(self.linear.weight)
        nn.init.zeros_(self.linear.bias)

    def forward(self, x: Tensor) -> Tensor:
        """Same shape as `x`."""
        return x + F.silu(self.linear(x))


class Head(Drafter):
    """The Medusa heads; parameter names are the checkpoint's."""

    kind = "medusa"
    lr_scale = 2.0
    default_steps = 2500
    tables = (".1.weight",)

    def __init__(self, target: TargetFacts, *, heads: int = 3) -> None:
        """`heads`: tokens drafted beyond the one that the target itself gives."""
        super().__init__()
        if heads < 1:
            raise ValueError(f"heads={heads} is not at least 1")
        self.target = target
        self.depth = heads
        self.medusa_head = nn.ModuleList(
            nn.Sequential(
                ResBlock(target.hidden), nn.Linear(target.hidden, target.vocab_size, bias=False)
            )
            for _ in range(heads)
        )
        for head in self.medusa_head:
            head[1].weight.data.copy_(target.head_VE)

    def loss(self, window: Window) -> tuple[Tensor, dict[str, float]]:
        """Sum over heads of HEAD_DECAY**k times the cross-entropy to the target's own law.

        The law is the one that the target has where the token stands: it has read what lies
        between, so it is the label with its noise taken out.
        """
        with torch.no_grad():
            law_BTV = self.target.logits(window.features_BTE).float().softmax(-1)
        total, figures = torch.zeros(()), {}
        for k, head in enumerate(self.medusa_head):
            logits = head(window.features_BTE[:, : -1 - k])
            mask, best = window.mask_BT[:, 1 + k :], window.best_BT[:, 1 + k :]
            entropy = soft_cross_entropy(logits, law_BTV[:, 1 + k :], mask)
            total = total + HEAD_DECAY**k * entropy
            figures[f"agree_{k + 1}"] = agreement(logits, best, mask)
        return total, figures

    def guess(self, window: Window) -> Tensor:
        """See `Drafter.guess`."""
        drafts = [head(window.features_BTE).argmax(-1) for head in self.medusa_head]
        return torch.stack(drafts, dim=-1).roll(1, dims=1)

    def save(self, folder: Path) -> None:
        """The layout of FasterDecoding/Medusa."""
        config = {
            "architectures": ["MedusaModel"],
            "model_type": "medusa",
            "medusa_num_heads": self.depth,
            "medusa_num_layers": 1,
            "hidden_size": self.target.hidden,
            "vocab_size": self.target.vocab_size,
            "torch_dtype": "bfloat16",
        }
        write_head(folder, config, self.state_dict())
