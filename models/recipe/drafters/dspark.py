"""DSpark: DFlash's network, a Markov head that ties drafts together, and a confidence head.

Slot j holds the anchor (j = 0) or a mask token and predicts the next position, so a block of b
slots makes b drafts. The Markov head adds W2 W1[x] to a draft's logits, x the token before it, so
drafts are chosen from left to right at the price of one small product each. The confidence head
reads the slot's row and W1[x] and estimates the chance that the draft is accepted; it never sees
the token that it scores (DSpark, arXiv 2607.05147).

The loss per draft is 0.1 CE + 0.9 |p_draft - p_target|_1 + BCE(confidence, 1 - |..|_1 / 2), each
weighted exp(-j / decay), over random anchors, with the window's tokens as the drafts before. CE is
to the target's law; the paper's labels are single tokens that the target wrote.

Shapes: B windows, T tokens, A anchors, K drafts (slots) of a block, E hidden size, V vocabulary.
"""

from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from interlock.models.recipe.drafters.blocks import (
    at_rows,
    block_rows,
    block_weights,
    soft_entropies,
    weighted_mean,
)
from interlock.models.recipe.drafters.dflash import BlockHead, agreement
from interlock.models.recipe.drafters.facts import TargetFacts, Window
from interlock.models.recipe.drafters.files import write_head

ENTROPY_WEIGHT, DISTANCE_WEIGHT, CONFIDENCE_WEIGHT = 0.1, 0.9, 1.0


class MarkovHead(nn.Module):
    """A bias on every token's logit that depends on the token before; of low rank."""

    def __init__(self, vocab_size: int, rank: int) -> None:
        super().__init__()
        self.markov_w1 = nn.Embedding(vocab_size, rank)
        self.markov_w2 = nn.Linear(rank, vocab_size, bias=False)
        nn.init.normal_(self.markov_w1.weight, std=0.02)
        nn.init.zeros_(self.markov_w2.weight)


class ConfidenceHead(nn.Module):
    """One logit from a slot's row and the embedding of the token before its draft."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.proj = nn.Linear(size, 1)
        nn.init.zeros_(self.proj.weight)
        nn.init.zeros_(self.proj.bias)


class Head(BlockHead):
    """The DSpark head."""

    kind = "dspark"
    tables = (*BlockHead.tables, "markov_w", "confidence_head")

    def __init__(
        self,
        target: TargetFacts,
        *,
        block_size: int = 7,
        layers: int = 2,
        intermediate: int = 384,
        markov_rank: int = 64,
        decay: float = 4.0,
        anchor_share: float = 1.0,
        self_contained: bool = False,
    ) -> None:
        """Drafts of a block; layers and their MLP size; rank of the Markov head; draft k counts
        exp(-k / decay); rows of blocks in a step, as a share of the window's tokens; whether the
        target's embedding and output matrix are written too.

        Raises:
            ValueError: a block without a draft, or no token that can stand for a mask.
        """
        super().__init__(
            target,
            slots=block_size,
            drafts=block_size,
            layers=layers,
            intermediate=intermediate,
            decay=decay,
            anchor_share=anchor_share,
        )
        self.markov_head = MarkovHead(target.vocab_size, markov_rank)
        self.confidence_head = ConfidenceHead(target.hidden + markov_rank)
        self.self_contained = self_contained

    def previous(self, window: Window, anchors_BA: Tensor) -> Tensor:
        """[B, A, K, R]: W1 of the token before each draft, as the window has it."""
        places = block_rows(window.ids_BT.shape[1], anchors_BA, self.depth)
        embedded: Tensor = self.markov_head.markov_w1(at_rows(window.ids_BT, places))
        return embedded

    def draft_logits(self, window: Window, anchors_BA: Tensor, rows_BAKE: Tensor) -> Tensor:
        """[B, A, K, V], the Markov head's bias included."""
        bias: Tensor = self.markov_head.markov_w2(self.previous(window, anchors_BA))
        return self.target.logits(rows_BAKE) + bias

    def confidence(self, window: Window, anchors_BA: Tensor, rows_BAKE: Tensor) -> Tensor:
        """[B, A, K] logits of the chance that a draft is accepted, given that those before were."""
        inputs = torch.cat([rows_BAKE, self.previous(window, anchors_BA).to(rows_BAKE.dtype)], -1)
        logits: Tensor = self.confidence_head.proj(inputs)
        return logits[..., 0]

    def block_loss(self, window: Window, anchors_BA: Tensor) -> tuple[Tensor, dict[str, float]]:
        """The three weighted parts, and how often argmaxes agree."""
        rows = self.rows(window, anchors_BA)
        logits = self.draft_logits(window, anchors_BA, rows).float()
        law = self.law(window, anchors_BA)
        weights = block_weights(window.mask_BT, anchors_BA, self.depth, self.decay)
        distance = (logits.softmax(-1) - law).abs().sum(-1)
        accepted = (1 - distance.detach() / 2).clamp(0, 1)
        confidence = self.confidence(window, anchors_BA, rows).float()
        doubt = F.binary_cross_entropy_with_logits(confidence, accepted, reduction="none")
        total = (
            ENTROPY_WEIGHT * soft_entropies(logits, law)
            + DISTANCE_WEIGHT * distance
            + CONFIDENCE_WEIGHT * doubt
        )
        figures = agreement(logits, law, weights)
        figures["accept_rate"] = weighted_mean(accepted, weights).item()
        figures["confidence_bias"] = weighted_mean(confidence.sigmoid() - accepted, weights).item()
        return weighted_mean(total, weights), figures

    def save(self, folder: Path) -> None:
        """DeepSpec's flat layout.

        `embed_tokens.weight` and `lm_head.weight` are the target's, and are written only when the
        head is to be self-contained, as the published ones are.
        """
        config = {
            "architectures": ["Qwen3DSparkModel"],
            **self.network.shape.config(),
            "tie_word_embeddings": False,
            "num_target_layers": self.target.layers,
            "block_size": self.slots,
            "target_layer_ids": list(self.taps),
            "mask_token_id": self.mask_token_id,
            "num_anchors": 512,
            "markov_rank": self.markov_head.markov_w1.embedding_dim,
            "markov_head_type": "vanilla",
            "enable_confidence_head": True,
            "confidence_head_with_markov": True,
        }
        tensors = self.network.tensors()
        for name in ("markov_head", "confidence_head"):
            part = getattr(self, name).state_dict()
            tensors |= {f"{name}.{key}": weight for key, weight in part.items()}
        if self.self_contained:
            tensors["embed_tokens.weight"] = self.target.embed_VE
            tensors["lm_head.weight"] = self.target.head_VE
        write_head(folder, config, tensors)
