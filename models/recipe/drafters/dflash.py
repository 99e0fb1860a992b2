"""DFlash: a block of mask tokens after the anchor becomes drafts in one pass (arXiv 2602.06036).

Slot 0 of a block holds the anchor and slot j >= 1 predicts its own position, so a block of b slots
makes b - 1 drafts. Embedding and output matrix are the target's. The loss is the cross-entropy to
the target's law of each draft, weighted exp(-(j - 1) / decay), over random anchors; the paper's
labels are single tokens that the target wrote, whose expectation is this law.

Shapes: B windows, T tokens, A anchors, J slots of a block, K drafts of a block, E hidden size.
"""

from abc import abstractmethod
from pathlib import Path

import torch
from torch import Tensor

from interlock.models.recipe.drafters.blocks import (
    BlockNetwork,
    BlockShape,
    at_rows,
    block_ids,
    block_rows,
    block_weights,
    draw_anchors,
    soft_entropies,
    unused_token,
    weighted_mean,
)
from interlock.models.recipe.drafters.facts import Drafter, TargetFacts, Window
from interlock.models.recipe.drafters.files import write_head
from interlock.models.recipe.drafters.fusion import default_taps

ROWS_AT_ONCE = 4096
"""Rows of blocks that run at once while guessing: their logits are the largest tensor."""


class BlockHead(Drafter):
    """What block drafters share: their network, their blocks, guesses and the files."""

    default_steps = 2800  # two to three times those of a layer that reads the last feature
    lr_scale = 1.5

    def __init__(
        self,
        target: TargetFacts,
        *,
        slots: int,
        drafts: int,
        layers: int,
        intermediate: int,
        decay: float,
        anchor_share: float,
    ) -> None:
        super().__init__()
        if drafts < 1 or decay <= 0 or anchor_share <= 0:
            raise ValueError(
                f"block_size={slots} must leave room for a draft, decay={decay} and "
                f"anchor_share={anchor_share} must be above 0"
            )
        self.target, self.taps, self.depth = target, default_taps(target.layers), drafts
        self.slots, self.decay, self.anchor_share = slots, decay, anchor_share
        self.mask_token_id = unused_token(target.counts_V)
        self.network = BlockNetwork(
            BlockShape(
                vocab_size=target.vocab_size,
                hidden=target.hidden,
                taps=len(self.taps),
                slots=slots,
                layers=layers,
                intermediate=intermediate,
                heads=target.heads,
                kv_heads=target.kv_heads,
                head_dim=target.head_dim,
                rope_theta=target.rope_theta,
                max_positions=target.max_positions,
            )
        )
        self.network.norm.weight.data.copy_(target.norm_E)

    def loss(self, window: Window) -> tuple[Tensor, dict[str, float]]:
        """`block_loss` over random anchors: block rows are `anchor_share` of the window's rows."""
        count = max(1, round(self.anchor_share * window.ids_BT.shape[1] / self.slots))
        return self.block_loss(window, draw_anchors(window.mask_BT, count))

    @abstractmethod
    def block_loss(self, window: Window, anchors_BA: Tensor) -> tuple[Tensor, dict[str, float]]:
        """What to minimise over the blocks of these anchors, and figures to print."""

    def rows(self, window: Window, anchors_BA: Tensor) -> Tensor:
        """[B, A, K, E]: the normed rows that predict drafts, the last `depth` slots."""
        ids = block_ids(window.ids_BT, anchors_BA, self.slots, self.mask_token_id)
        rows = self.network(self.target.embed(ids), window.taps_BTXE, anchors_BA)
        return rows[:, :, self.slots - self.depth :]

    def draft_logits(self, window: Window, anchors_BA: Tensor, rows_BAKE: Tensor) -> Tensor:
        """[B, A, K, V] of drafts."""
        return self.target.logits(rows_BAKE)

    def guess(self, window: Window) -> Tensor:
        """[B, T, K]; every position of the window is an anchor once."""
        batch, tokens = window.ids_BT.shape
        count = max(1, ROWS_AT_ONCE // (batch * self.slots))
        parts = []
        for anchors in torch.arange(tokens).split(count):
            places = anchors.expand(batch, -1)
            rows = self.rows(window, places)
            parts.append(self.draft_logits(window, places, rows).argmax(-1))
        return torch.cat(parts, dim=1)

    def round_weights(self) -> None:
        """As for every head; the scales of the taps become part of the matrix first."""
        self.network.fc.set_weight(self.network.fc.weight.detach())
        super().round_weights()

    def law(self, window: Window, anchors_BA: Tensor) -> Tensor:
        """[B, A, K, V]: the target's law of every draft."""
        places = block_rows(window.ids_BT.shape[1], anchors_BA, self.depth)
        with torch.no_grad():
            return self.target.logits(at_rows(window.features_BTE, places)).float().softmax(-1)


class Head(BlockHead):
    """The DFlash head."""

    kind = "dflash"

    def __init__(
        self,
        target: TargetFacts,
        *,
        block_size: int = 8,
        layers: int = 2,
        intermediate: int = 384,
        decay: float = 4.0,
        anchor_share: float = 1.0,
    ) -> None:
        """Slots of a block, the anchor's included; layers and their MLP size; draft k counts
        exp(-k / decay); rows of blocks in a step, as a share of the window's tokens.

        Raises:
            ValueError: a block without a draft, or no token that can stand for a mask.
        """
        super().__init__(
            target,
            slots=block_size,
            drafts=block_size - 1,
            layers=layers,
            intermediate=intermediate,
            decay=decay,
            anchor_share=anchor_share,
        )

    def block_loss(self, window: Window, anchors_BA: Tensor) -> tuple[Tensor, dict[str, float]]:
        """The weighted cross-entropy, and how often argmaxes agree."""
        logits = self.draft_logits(window, anchors_BA, self.rows(window, anchors_BA))
        law = self.law(window, anchors_BA)
        weights = block_weights(window.mask_BT, anchors_BA, self.depth, self.decay)
        return weighted_mean(soft_entropies(logits, law), weights), agreement(logits, law, weights)

    def save(self, folder: Path) -> None:
        """z-lab's layout; embedding and output matrix are the target's."""
        config = {
            "architectures": ["DFlashDraftModel"],
            **self.network.shape.config(),
            "num_target_layers": self.target.layers,
            "block_size": self.slots,
            "dflash_config": {
                "mask_token_id": self.mask_token_id,
                "target_layer_ids": list(self.taps),
            },
        }
        write_head(folder, config, self.network.tensors())


def agreement(logits: Tensor, law: Tensor, weights: Tensor) -> dict[str, float]:
    """How often the most likely tokens are the same, by draft."""
    same, counts = logits.argmax(-1) == law.argmax(-1), weights > 0
    rates = (same & counts).sum((0, 1)) / counts.sum((0, 1)).clamp(min=1)
    return {f"agree_{k + 1}": rate for k, rate in enumerate(rates.tolist())}
