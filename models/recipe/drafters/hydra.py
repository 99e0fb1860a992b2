"""Hydra: Medusa heads that also read the tokens drafted so far (arXiv 2402.05109).

Head k reads cat[f_i, emb(t_{i+1}), .., emb(t_{i+1+k})] and predicts the token at i + 2 + k; the
last k of those tokens are drafts when it is used, and the true ones in training. Shapes: B windows,
T tokens, E hidden size, V vocabulary, K heads.
"""

from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from interlock.models.recipe.drafters.chains import ahead
from interlock.models.recipe.drafters.facts import (
    Drafter,
    TargetFacts,
    Window,
    agreement,
    soft_cross_entropy,
)
from interlock.models.recipe.drafters.files import write_head
from interlock.models.recipe.drafters.medusa import ResBlock


class FirstBlock(nn.Module):
    """res_connection(x) + silu(linear(x)) from (1 + tokens) vectors to one; at first the feature.

    Embeddings are some twenty times smaller than final-norm features, and one matrix over both
    would learn to read the features long before the tokens: they are scaled to unit size here, and
    the factor is a part of the stored matrices.
    """

    def __init__(self, hidden: int, tokens: int) -> None:
        super().__init__()
        self.linear = nn.Linear(hidden * (1 + tokens), hidden)
        self.res_connection = nn.Linear(hidden * (1 + tokens), hidden)
        for layer in (self.linear, self.res_connection):
            nn.init.zeros_(layer.weight)
            nn.init.zeros_(layer.bias)
        self.res_connection.weight.data[:, :hidden] = torch.eye(hidden)

    def forward(self, x: Tensor) -> Tensor:
        """[..., hidden]."""
        return self.res_connection(x) + F.silu(self.linear(x))


class Head(Drafter):
    """The Hydra heads; parameter names are the checkpoint's."""

    kind = "hydra"
    lr_scale = 2.0
    default_steps = 2000
    tables = ("hydra_lm_head",)

    def __init__(self, target: TargetFacts, *, heads: int = 3, layers: int = 1) -> None:
        """`heads`: tokens drafted beyond the one that the target itself gives; blocks of each."""
        super().__init__()
        if heads < 1 or layers < 1:
            raise ValueError(f"heads={heads} and layers={layers} are not both at least 1")
        self.target = target
        self.depth, self.layers = heads, layers
        self.token_scale = 1.0 / target.embed_VE.std().item()
        self.hydra_mlp = nn.ModuleList(
            nn.Sequential(
                FirstBlock(target.hidden, 1 + k),
                *(ResBlock(target.hidden) for _ in range(layers - 1)),
            )
            for k in range(heads)
        )
        self.hydra_lm_head = nn.ModuleList(
            nn.Linear(target.hidden, target.vocab_size) for _ in range(heads)
        )
        for head in self.hydra_lm_head:
            head.weight.data.copy_(target.head_VE)
            nn.init.zeros_(head.bias)

    def logits(self, window: Window) -> list[Tensor]:
        """[B, T, V] of each head; row i of head k is for the token at i + 2 + k."""
        embedded = self.target.embed(window.ids_BT) * self.token_scale
        inputs, found = window.features_BTE, []
        for k, (mlp, head) in enumerate(zip(self.hydra_mlp, self.hydra_lm_head, strict=True)):
            inputs = torch.cat([inputs, ahead(embedded, 1 + k)], dim=-1)
            found.append(head(mlp(inputs)))
        return found

    def loss(self, window: Window) -> tuple[Tensor, dict[str, float]]:
        """Sum over heads of the cross-entropy to the target's law, as Hydra++ distils it."""
        with torch.no_grad():
            law_BTV = self.target.logits(window.features_BTE).float().softmax(-1)
        total, figures = torch.zeros(()), {}
        for k, logits in enumerate(self.logits(window)):
            rows, mask = logits[:, : -1 - k], window.mask_BT[:, 1 + k :]
            total = total + soft_cross_entropy(rows, law_BTV[:, 1 + k :], mask)
            figures[f"agree_{k + 1}"] = agreement(rows, window.best_BT[:, 1 + k :], mask)
        return total, figures

    def guess(self, window: Window) -> Tensor:
        """See `Drafter.guess`."""
        drafts = [logits.argmax(-1) for logits in self.logits(window)]
        return torch.stack(drafts, dim=-1).roll(1, dims=1)

    def save(self, folder: Path) -> None:
        """The names of zankner/Hydra's grounded MLP heads (its hydra_lm_head.pt)."""
        config = {
            "architectures": ["HydraModel"],
            "model_type": "hydra",
            "hydra_num_heads": self.depth,
            "hydra_num_layers": self.layers,
            "hydra_head_arch": "mlp",
            "grounded_heads": True,
            "hidden_state_offset": 0,
            "hidden_size": self.target.hidden,
            "vocab_size": self.target.vocab_size,
            "torch_dtype": "bfloat16",
        }
        tensors = dict(self.state_dict())
        for k in range(self.depth):
            for layer in ("linear", "res_connection"):
                weight = tensors[f"hydra_mlp.{k}.0.{layer}.weight"].clone()
                weight[:, self.target.hidden :] *= self.token_scale
                tensors[f"hydra_mlp.{k}.0.{layer}.weight"] = weight
        write_head(folder, config, tensors)
