"""A multi-token-prediction layer: one decoder layer of the target's kind over (token, hidden).

Row i fuses the embedding of the token at i + 1 with the target's hidden state h_i before its final
norm, sits at rotary position i, and predicts the token at i + 2 (DeepSeek-V3, arXiv 2412.19437,
section 2.2). For more drafts the same layer is applied again to its own output before its norm,
so it is trained that way: step k of the unrolled loss counts beta**k (FastMTP, arXiv 2509.18362).

Shapes: B sequences, T rows, H heads, D head size, E hidden size, V vocabulary.
"""

from pathlib import Path

import torch
from torch import Tensor, nn

from interlock.models.recipe.decode import project_heads, project_latent
from interlock.models.recipe.drafters.facts import (
    Drafter,
    TargetFacts,
    Window,
    agreement,
    soft_cross_entropy,
)
from interlock.models.recipe.drafters.files import write_head
from interlock.models.recipe.eagle import KeyValues, attend_unrolled, shift
from interlock.models.recipe.network import Block, RMSNorm, Shape

UNWRITTEN = ("rope_scaling", "attention_bias", "mlp_bias", "q_lora_rank")
"""Settings of a target's config whose layers the recipe does not write."""


class PredictionLayer(Block):
    """eh_proj over normed embedding and hidden, then a decoder layer; names are DeepSeek-V3's."""

    def __init__(self, shape: Shape) -> None:
        super().__init__(shape)
        self.shape = shape
        self.enorm = RMSNorm(shape.hidden, shape.norm_eps)
        self.hnorm = RMSNorm(shape.hidden, shape.norm_eps)
        self.eh_proj = nn.Linear(2 * shape.hidden, shape.hidden, bias=False)
        self.shared_head = nn.Module()
        self.shared_head.norm = RMSNorm(shape.hidden, shape.norm_eps)
        for name, weight in self.named_parameters():
            if weight.ndim == 2:
                nn.init.normal_(weight, std=0.02)
            if name.endswith(("o_proj.weight", "down_proj.weight")):
                nn.init.zeros_(weight)

    def unroll(self, embedded_BTE: Tensor, hidden_BTE: Tensor, steps: int) -> list[Tensor]:
        """Layer outputs [B, T, E], before the norm, of 1 .. `steps` drafting steps.

        Row i of `embedded_BTE` embeds the token at i + 1. Row i of result k belongs to draft k + 1
        of a chain whose last committed row is i - k, so rows below k mean nothing.
        """
        results: list[Tensor] = []
        seen: list[KeyValues] = []
        hidden = hidden_BTE
        for _ in range(steps):
            x = self.fuse(embedded_BTE, hidden)
            q, k, v = self._project(self.input_layernorm(x))
            seen.append((k, v))
            x = x + self.self_attn.o_proj(attend_unrolled(q, seen).transpose(1, 2).flatten(2))
            x = x + self.mlp(self.post_attention_layernorm(x))
            results.append(x)
            hidden = shift(x, 1, dim=1)
        return results

    def fuse(self, embedded: Tensor, hidden: Tensor) -> Tensor:
        """The layer's input [..., E]; the embedding's half comes first."""
        return self.eh_proj(torch.cat([self.enorm(embedded), self.hnorm(hidden)], -1))

    def _project(self, x_BTE: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """q, k, v [B, H, T, D], keys and values repeated for every query head."""
        if self.shape.attention == "mla":
            return project_latent(self.self_attn, x_BTE, 0)
        q, k, v = project_heads(self.self_attn, x_BTE, 0)
        group = self.shape.heads // self.shape.kv_heads
        return q, k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)


class Head(Drafter):
    """One prediction layer, applied again for every further draft."""

    kind = "mtp"
    default_steps = 1300
    lr_scale = 2.0

    depth = 7

    def __init__(self, target: TargetFacts, *, unrolled: int = 4, beta: float = 0.6) -> None:
        """Drafting steps to unroll in training; step k counts beta**k.

        Raises:
            ValueError: an option out of its range, or layers that the recipe cannot write.
        """
        super().__init__()
        if not 1 <= unrolled <= self.depth or not 0 < beta <= 1:
            raise ValueError(
                f"unrolled={unrolled} must be from 1 to {self.depth}, beta={beta} above 0 and up "
                "to 1"
            )
        self.target, self.unrolled, self.beta = target, unrolled, beta
        self.layer = PredictionLayer(layer_shape(target))
        self.layer.shared_head.norm.weight.data.copy_(target.norm_E)

    def logits(self, window: Window, steps: int) -> list[Tensor]:
        """[B, T - 1, V] for every step: row i of step k guesses the token at i + 2."""
        embedded = self.target.embed(window.ids_BT[:, 1:])
        outputs = self.layer.unroll(embedded, window.hidden_BTE[:, :-1].float(), steps)
        return [self.target.logits(self.layer.shared_head.norm(output)) for output in outputs]

    def loss(self, window: Window) -> tuple[Tensor, dict[str, float]]:
        """Mean over steps, weighted beta**k, of the cross-entropy to the target's law."""
        with torch.no_grad():
            law = self.target.logits(window.features_BTE[:, 1:]).float().softmax(-1)
        best, mask = window.best_BT[:, 1:], window.mask_BT[:, 1:]
        total, figures = torch.zeros(()), {}
        for k, logits in enumerate(self.logits(window, self.unrolled)):
            entropy = soft_cross_entropy(logits[:, k:], law[:, k:], mask[:, k:])
            total = total + self.beta**k * entropy
            figures[f"agree_{k + 1}"] = agreement(logits[:, k:], best[:, k:], mask[:, k:])
        return total / sum(self.beta**k for k in range(self.unrolled)), figures

    def guess(self, window: Window) -> Tensor:
        """[B, T, K]: draft k of anchor i is row i - 1 + k of step k."""
        drafts = []
        for k, logits in enumerate(self.logits(window, self.depth)):
            best = logits.argmax(-1)
            best = torch.cat([best[:, :1], best], dim=1)  # anchor 0 has no row before it
            drafts.append(best.roll(-k, dims=1))
        return torch.stack(drafts, dim=-1)

    def save(self, folder: Path) -> None:
        """DeepSeek-V3's names at the layer after the target's last; tables are the target's."""
        prefix = f"model.layers.{self.target.layers}."
        tensors = {prefix + name: weight for name, weight in self.layer.state_dict().items()}
        write_head(folder, {**self.target.config, "num_nextn_predict_layers": 1}, tensors)


def layer_shape(target: TargetFacts) -> Shape:
    """The shape of one of the target's decoder layers.

    Raises:
        ValueError: the target's layers are neither Llama's nor dense DeepSeek-V3's.
    """
    config = target.config
    family, latent = config.get("model_type"), config.get("model_type") == "deepseek_v3"
    unwritten = [name for name in UNWRITTEN if config.get(name)]
    if (config.get("rope_parameters") or {}).get("rope_type", "default") != "default":
        unwritten.append("rope_parameters")
    if latent and config.get("first_k_dense_replace", 0) < target.layers:
        unwritten.append("first_k_dense_replace")
    if not (latent or family == "llama") or unwritten:
        raise ValueError(
            f"mtp makes a layer of the target's kind; model_type={family!r}"
            + "".join(f", {name}={config.get(name)!r}" for name in unwritten)
            + " is not one that the recipe writes: it writes 'llama' and dense 'deepseek_v3' "
            f"without {', '.join(UNWRITTEN)}. Train eagle3, dflash or dspark: they read any target"
        )
    if not latent:
        return target.shape(target.intermediate)
    return Shape(
        attention="mla",
        vocab_size=target.vocab_size,
        hidden=target.hidden,
        intermediate=target.intermediate,
        layers=1,
        heads=target.heads,
        head_dim=config["v_head_dim"],
        kv_lora_rank=config["kv_lora_rank"],
        nope_dim=config["qk_nope_head_dim"],
        rope_dim=config["qk_rope_head_dim"],
        norm_eps=target.norm_eps,
        rope_theta=target.rope_theta,
    )
