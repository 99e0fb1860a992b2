"""What a drafter head gets: facts about its target, and windows of what the target computed.

Shapes: B windows, T tokens, E hidden size of the target, X tapped layers, V vocabulary, K drafts.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from interlock.models.recipe.network import Shape


@dataclass(frozen=True)
class TargetFacts:
    """Sizes and frozen matrices of a target; `config` is its config.json.

    `embed_VE` is the stored embedding matrix, `head_VE` the output matrix (the same where they are
    tied), `norm_E` the final norm's stored weight, all fp32. `counts_V` says how often each token
    occurs in the training windows. A target with a latent has no key/value heads to copy: its
    `kv_heads` is half of its heads.
    """

    config: Mapping[str, Any]
    hidden: int
    vocab_size: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    norm_eps: float
    rope_theta: float
    max_positions: int
    embed_VE: Tensor
    head_VE: Tensor
    norm_E: Tensor
    counts_V: Tensor

    def embed(self, ids: Tensor) -> Tensor:
        """[..., E] rows of the embedding matrix."""
        return F.embedding(ids, self.embed_VE)

    def logits(self, features: Tensor) -> Tensor:
        """[..., V] of final-norm features, in the dtype of the surrounding autocast."""
        logits = F.linear(features, self.head_VE)
        cap = self.config.get("final_logit_softcapping")
        return logits if cap is None else torch.tanh(logits / cap) * cap

    def shape(self, intermediate: int, layers: int = 1) -> Shape:
        """A Llama layer of the target's width and heads, for a head that is a layer."""
        return Shape(
            attention="gqa",
            vocab_size=self.vocab_size,
            hidden=self.hidden,
            intermediate=intermediate,
            layers=layers,
            heads=self.heads,
            kv_heads=self.kv_heads,
            head_dim=self.head_dim,
            norm_eps=self.norm_eps,
            rope_theta=self.rope_theta,
        )


@dataclass(frozen=True)
class Window:
    """What the target computed over B windows of T tokens, rounded to bf16 in the store.

    Row i of `features_BTE` is the final-norm feature f_i of token i, of `hidden_BTE` the last
    layer's output before that norm, of `taps_BTXE` the outputs of the head's `taps` in their order.
    `best_BT` is the token that the target finds most likely after token i. `mask_BT` is true where
    the law after token i counts: inside an answer, not in a prompt of the user's or in padding.
    Padding is at the end only.
    """

    ids_BT: Tensor
    features_BTE: Tensor
    hidden_BTE: Tensor
    taps_BTXE: Tensor
    best_BT: Tensor
    mask_BT: Tensor


class Drafter(nn.Module, ABC):
    """A head in training. Every keyword of `__init__` with a default is an option of the command.

    `depth` is how many tokens it drafts in a chain; `default_steps` of about 1024 tokens train it.
    `lr_scale` multiplies the optimisers' rates. `tables` names parameters (by a part of the name)
    that AdamW trains though they are matrices: rows of a vocabulary.
    """

    kind: ClassVar[str]
    default_steps: ClassVar[int] = 1200
    lr_scale: ClassVar[float] = 1.0
    tables: ClassVar[tuple[str, ...]] = ("embed_tokens", "lm_head")
    taps: tuple[int, ...] = ()
    """0-based layers whose outputs it reads."""
    depth: int

    @abstractmethod
    def loss(self, window: Window) -> tuple[Tensor, dict[str, float]]:
        """What to minimise, and figures to print. Called under bf16 autocast; sums in fp32."""

    @abstractmethod
    def guess(self, window: Window) -> Tensor:
        """[B, T, K] int64: row i, place k is the draft for token i + 1 + k with token i the anchor.

        The anchor is the last committed token, so features of tokens below i may be read, and the
        tokens up to i + k: before the first wrong draft they are what was drafted. Where a row has
        no feature to read (i = 0) or no tokens left, any number stands.
        """

    def round_weights(self) -> None:
        """Bring every trained weight to what bf16 holds, as files have it."""
        for weight in self.parameters():
            weight.data = weight.data.to(torch.bfloat16).to(weight.dtype)

    @abstractmethod
    def save(self, folder: Path) -> None:
        """Write config.json and model.safetensors (bf16) in the published layout."""


def soft_cross_entropy(logits: Tensor, law: Tensor, mask: Tensor) -> Tensor:
    """Mean cross-entropy to the target's law over the rows that `mask` keeps; 0 without any."""
    entropy = F.cross_entropy(logits.float().flatten(0, -2), law.flatten(0, -2), reduction="none")
    kept = mask.flatten().float()
    return (entropy * kept).sum() / kept.sum().clamp(min=1)


def agreement(logits: Tensor, best: Tensor, mask: Tensor) -> float:
    """How often `best` is a most likely token of the logits, over the rows that `mask` keeps."""
    rows = logits.detach()  # the maximum is many times faster than its place
    same = (rows.gather(-1, best[..., None])[..., 0] == rows.amax(-1)) & mask
    return (same.sum() / mask.sum().clamp(min=1)).item()
