"""A small causal language model of the target's vocabulary, distilled from the target's law.

It reads tokens only, so it needs no feature of the target when it drafts. The loss is the
cross-entropy to the target's law of the next token, over the text and the target's own
continuations (distillation, arXiv 1503.02531; for drafting, arXiv 2310.08461).

Shapes: B windows, T tokens, K drafts, V vocabulary.
"""

from pathlib import Path

import torch
from torch import Tensor

from interlock.models.recipe.checkpoint import save_decoder
from interlock.models.recipe.drafters.facts import (
    Drafter,
    TargetFacts,
    Window,
    agreement,
    soft_cross_entropy,
)
from interlock.models.recipe.network import Decoder, Shape


class Head(Drafter):
    """A narrow Llama."""

    kind = "draft_model"
    default_steps = 3600
    lr_scale = 1.0
    depth = 7

    def __init__(
        self,
        target: TargetFacts,
        *,
        hidden: int = 128,
        intermediate: int = 352,
        layers: int = 2,
        heads: int = 2,
        kv_heads: int = 1,
    ) -> None:
        """Sizes of the model: hidden, MLP, layers, query heads, key/value heads.

        Raises:
            ValueError: sizes that do not divide each other.
        """
        super().__init__()
        if hidden % heads or hidden // heads % 2 or heads % kv_heads:
            raise ValueError(
                f"hidden={hidden} must be an even multiple of heads={heads}, and heads a multiple "
                f"of kv_heads={kv_heads}"
            )
        self.target = target
        self.decoder = Decoder(
            Shape(
                attention="gqa",
                vocab_size=target.vocab_size,
                hidden=hidden,
                intermediate=intermediate,
                layers=layers,
                heads=heads,
                kv_heads=kv_heads,
                head_dim=hidden // heads,
                norm_eps=target.norm_eps,
                rope_theta=target.rope_theta,
            )
        )

    def loss(self, window: Window) -> tuple[Tensor, dict[str, float]]:
        """Cross-entropy to the target's law after every token that counts."""
        logits = self.decoder.logits(self.decoder.features(window.ids_BT))
        with torch.no_grad():
            law = self.target.logits(window.features_BTE).float().softmax(-1)
        figures = {"agree_1": agreement(logits, window.best_BT, window.mask_BT)}
        return soft_cross_entropy(logits, law, window.mask_BT), figures

    def guess(self, window: Window) -> Tensor:
        """[B, T, K]: draft k after anchor i is the model's own next token after i + k."""
        best = self.decoder.logits(self.decoder.features(window.ids_BT)).argmax(-1)
        return torch.stack([best.roll(-k, dims=1) for k in range(self.depth)], dim=-1)

    def save(self, folder: Path) -> None:
        """An ordinary Llama checkpoint."""
        save_decoder(self.decoder, folder)
