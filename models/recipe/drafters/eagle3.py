"""EAGLE-3: one layer over fused outputs of three target layers (arXiv 2503.01840).

Row i takes g_i = fc(taps of token i) and the embedding of the token at i + 1, sits at rotary
position i and predicts the token at i + 2. A draft's row takes the row before it instead of g: the
layer's output before the last norm. Training unrolls that (`ttt` steps); with ttt=1 the head only
ever sees the target's features and fails from the second draft on.

Shapes: B windows, T tokens, N tokens of all windows that count, X taps, E hidden size, V draft
vocabulary, K drafts.
"""

from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from interlock.models.recipe.drafters.chains import KeyValues, ahead, chain_attention
from interlock.models.recipe.drafters.facts import (
    Drafter,
    TargetFacts,
    Window,
    agreement,
    soft_cross_entropy,
)
from interlock.models.recipe.drafters.files import layer_config, write_head
from interlock.models.recipe.drafters.fusion import TapFusion, default_taps
from interlock.models.recipe.network import GroupedQueryAttention, RMSNorm, SwiGLU

STEP_DECAY = 0.8


class MidLayer(nn.Module):
    """A Llama layer whose projections read cat[normed embedding, normed g]; names as stored."""

    def __init__(self, target: TargetFacts, intermediate: int) -> None:
        super().__init__()
        shape = target.shape(intermediate)
        self.hidden_norm = RMSNorm(target.hidden, target.norm_eps)
        self.input_layernorm = RMSNorm(target.hidden, target.norm_eps)
        self.self_attn = GroupedQueryAttention(shape, input_size=2 * target.hidden)
        self.post_attention_layernorm = RMSNorm(target.hidden, target.norm_eps)
        self.mlp = SwiGLU(shape)

    def forward(self, embedded_BTE: Tensor, g_BTE: Tensor, seen: list[KeyValues]) -> Tensor:
        """The layer's output [B, T, E] for the next step of every chain; see `chain_attention`."""
        pair = torch.cat([self.input_layernorm(embedded_BTE), self.hidden_norm(g_BTE)], dim=-1)
        x = g_BTE + chain_attention(self.self_attn, pair, seen)
        return x + self.mlp(self.post_attention_layernorm(x))


class Head(Drafter):
    """The EAGLE-3 head; parameter names are the checkpoint's."""

    kind = "eagle3"
    default_steps = 1800
    lr_scale = 2.0
    depth = 7

    def __init__(
        self,
        target: TargetFacts,
        *,
        ttt: int = 4,
        intermediate: int = 0,
        draft_vocab_size: int = 0,
    ) -> None:
        """`ttt` drafting steps to unroll; MLP size (0: twice the hidden size); tokens that can be
        drafted, the most frequent ones (0: all). Their rows of the target's output matrix are kept.
        """
        super().__init__()
        if not 1 <= ttt <= self.depth:
            raise ValueError(f"ttt={ttt} is not from 1 to {self.depth}")
        if not 0 <= draft_vocab_size <= target.vocab_size:
            raise ValueError(
                f"draft_vocab_size={draft_vocab_size} is not from 0 (all) to {target.vocab_size}"
            )
        self.target = target
        self.ttt = ttt
        self.taps = default_taps(target.layers)
        self.intermediate = intermediate or 2 * target.hidden
        self.draft_ids = most_frequent(target.counts_V, draft_vocab_size or target.vocab_size)
        self.fc = TapFusion(len(self.taps), target.hidden)
        self.midlayer = MidLayer(target, self.intermediate)
        self.norm = RMSNorm(target.hidden, target.norm_eps)
        self.lm_head = nn.Linear(target.hidden, len(self.draft_ids), bias=False)
        for name, weight in self.named_parameters():
            if weight.ndim == 2:
                nn.init.normal_(weight, std=0.02)
            if name.endswith(("o_proj.weight", "down_proj.weight")):
                nn.init.zeros_(weight)
        self.fc.matrix.weight.data[:, -target.hidden :] += torch.eye(
            target.hidden
        )  # the high layer
        self.lm_head.weight.data.copy_(target.head_VE[self.draft_ids])
        self.lm_head.requires_grad_(False)
        self.norm.weight.data.copy_(target.norm_E)

    def unroll(self, window: Window, steps: int) -> list[Tensor]:
        """Outputs [B, T, E] of the layer: step k's row c is for the token at c + 2 + k."""
        g = self.fc(window.taps_BTXE)
        seen: list[KeyValues] = []
        outputs = []
        for step in range(steps):
            embedded = self.target.embed(ahead(window.ids_BT, step + 1))
            g = self.midlayer(embedded, g, seen)
            outputs.append(g)
        return outputs

    def logits(self, outputs: Tensor) -> Tensor:
        """[..., draft vocabulary] of the layer's outputs."""
        return self.lm_head(self.norm(outputs))

    def loss(self, window: Window) -> tuple[Tensor, dict[str, float]]:
        """Sum over steps of STEP_DECAY**k times the cross-entropy to the target's law.

        The law is renormalised over the draft vocabulary; rows are left out where the target's most
        likely token is not in it.
        """
        place_V = torch.full((self.target.vocab_size,), -1)
        place_V[self.draft_ids] = torch.arange(len(self.draft_ids))
        best_BT = place_V[window.best_BT]
        kept_BT = window.mask_BT & (best_BT >= 0)
        # The head is much of the work: only for rows that count.
        place_N = kept_BT.nonzero()[:, 1]
        with torch.no_grad():
            goal = F.linear(window.features_BTE[kept_BT], self.target.head_VE[self.draft_ids])
            law_NV, best_N = goal.float().softmax(-1), best_BT[kept_BT]
        total, figures = torch.zeros(()), {}
        for step, outputs in enumerate(self.unroll(window, self.ttt)):
            first = step + 1
            logits = self.logits(outputs[:, :-first][kept_BT[:, first:]])
            rows = place_N >= first  # both in the order of windows and places
            law, best, mask = law_NV[rows], best_N[rows], rows[rows]
            total = total + STEP_DECAY**step * soft_cross_entropy(logits, law, mask)
            figures[f"agree_{first}"] = agreement(logits, best, mask)
        return total, figures

    def guess(self, window: Window) -> Tensor:
        """See `Drafter.guess`."""
        drafts = [
            self.draft_ids[self.logits(x).argmax(-1)] for x in self.unroll(window, self.depth)
        ]
        return torch.stack(drafts, dim=-1).roll(1, dims=1)

    def round_weights(self) -> None:
        """As for every head; the scales of the taps become part of the matrix first."""
        self.fc.set_weight(self.fc.weight.detach())
        super().round_weights()

    def save(self, folder: Path) -> None:
        """The layout of SafeAILab/EAGLE and SpecForge; what is the target's is left out.

        That is the embedding and, where all tokens can be drafted, the output matrix.
        """
        config = {
            "architectures": ["LlamaForCausalLMEagle3"],
            "model_type": "llama",
            **layer_config(self.target, self.intermediate),
            "draft_vocab_size": len(self.draft_ids),
            "eagle_config": {
                "eagle_aux_hidden_state_layer_ids": [layer + 1 for layer in self.taps],
                "use_aux_hidden_state": True,
            },
        }
        known = torch.zeros(self.target.vocab_size, dtype=torch.bool)
        known[self.draft_ids] = True
        offsets = self.draft_ids - torch.arange(len(self.draft_ids))
        shared = ("fc.", "lm_head.") if len(self.draft_ids) == self.target.vocab_size else ("fc.",)
        named = {n: w for n, w in self.state_dict().items() if not n.startswith(shared)}
        named |= {"fc.weight": self.fc.weight, "d2t": offsets, "t2d": known}
        write_head(folder, config, named)


def most_frequent(counts_V: Tensor, size: int) -> Tensor:
    """[size] ids in rising order: the most frequent tokens, lower ids first on ties."""
    return counts_V.argsort(descending=True, stable=True)[:size].sort().values
