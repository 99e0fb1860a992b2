"""The EAGLE-1 head as it is trained: dense batches, several drafting steps unrolled.

Row i pairs the target's final-norm feature f_i with the token at i + 1, sits at rotary position i
and estimates f_{i+1}, from which the target's own head predicts the token at i + 2
(arXiv 2401.15077). Unrolled step k feeds the head its own estimates k times, as drafting does
(training-time test of arXiv 2503.01840; arXiv 2408.15766).

Shapes: B sequences, T rows, H query heads, D head size, E hidden size.
"""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional as F

from interlock.models.recipe.network import (
    MAX_POSITIONS,
    GroupedQueryAttention,
    RMSNorm,
    Shape,
    SwiGLU,
    rotate_halves,
)

KeyValues = tuple[Tensor, Tensor]


class EagleLayer(nn.Module):
    """A Llama layer without its first norm; parameter names are the checkpoint's."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.self_attn = GroupedQueryAttention(shape)
        self.post_attention_layernorm = RMSNorm(shape.hidden, shape.norm_eps)
        self.mlp = SwiGLU(shape)


class Fusion(nn.Module):
    """fc(cat[embedding, feature]) as two matrices, so that each is trained at its own scale.

    Tied embeddings are some twenty times smaller than final-norm features; one matrix over both
    would learn to read the features long before the token. `token_scale` brings embeddings to
    unit size while training; `weight` is the checkpoint's single matrix.
    """

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.token = nn.Linear(hidden, hidden, bias=False)
        self.feature = nn.Linear(hidden, hidden, bias=False)
        self.token_scale = 1.0

    def forward(self, embeddings: Tensor, features: Tensor) -> Tensor:
        """The layer's input [..., hidden]."""
        return self.token(embeddings * self.token_scale) + self.feature(features)

    @property
    def weight(self) -> Tensor:
        """[hidden, 2 hidden], the embedding's half first."""
        return torch.cat([self.token.weight * self.token_scale, self.feature.weight], dim=1)

    def set_weight(self, weight: Tensor) -> None:
        """Take the checkpoint's matrix."""
        token, feature = weight.detach().chunk(2, dim=1)
        self.token_scale = 1.0
        self.token.weight.data.copy_(token)
        self.feature.weight.data.copy_(feature)


class EagleHead(nn.Module):
    """One decoder layer over fc(embedding, feature); embeddings and head are the target's."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.fc = Fusion(shape.hidden)
        self.layers = nn.ModuleList([EagleLayer(shape)])
        for name, weight in self.named_parameters():
            if weight.ndim == 2:
                nn.init.normal_(weight, std=0.02)
            if name.endswith(("o_proj.weight", "down_proj.weight")):
                nn.init.zeros_(weight)

    def unroll(self, embeddings_BTE: Tensor, features_BTE: Tensor, steps: int) -> list[Tensor]:
        """Estimates [B, T, E] after 1 .. `steps` drafting steps.

        Row i of `embeddings_BTE` embeds the token at i + 1. Row i of result k estimates f_{i+1} as
        draft k + 1 of a chain whose last committed row is i - k, so rows below k mean nothing.
        """
        results: list[Tensor] = []
        seen: list[KeyValues] = []
        features = features_BTE
        for _ in range(steps):
            x = self.fc(embeddings_BTE, features)
            q, k, v = self._project(x)
            seen.append((k, v))
            attended = attend_unrolled(q, seen).transpose(1, 2).flatten(2)
            layer = self.layers[0]
            x = x + layer.self_attn.o_proj(attended)
            x = x + layer.mlp(layer.post_attention_layernorm(x))
            results.append(x)
            features = shift(x, 1, dim=1)
        return results

    def _project(self, x_BTE: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """q, k, v [B, H, T, D], keys and values repeated for every query head."""
        attention = self.layers[0].self_attn
        batch, tokens, _ = x_BTE.shape
        cos, sin = attention.cos[:tokens], attention.sin[:tokens]
        q, k, v = (
            projection(x_BTE).view(batch, tokens, -1, self.shape.head_dim).transpose(1, 2)
            for projection in (attention.q_proj, attention.k_proj, attention.v_proj)
        )
        group = self.shape.heads // self.shape.kv_heads
        q, k = rotate_halves(q, cos, sin).to(v.dtype), rotate_halves(k, cos, sin).to(v.dtype)
        return q, k.repeat_interleave(group, dim=1), v.repeat_interleave(group, dim=1)


def shift(x: Tensor, rows: int, dim: int) -> Tensor:
    """`x` moved `rows` later along `dim`, zeros in front: row i becomes what row i - rows was."""
    if rows == 0:
        return x
    kept = x.narrow(dim, 0, x.shape[dim] - rows)
    return torch.cat([torch.zeros_like(x.narrow(dim, 0, rows)), kept], dim=dim)


def attend_unrolled(q_BHTD: Tensor, seen: list[KeyValues]) -> Tensor:
    """Attention of the newest unrolled step k = len(seen) - 1, as in a real chain.

    Query i sees the committed rows j <= i - k of step 0 and, of every later step s, the one row
    i - k + s that its own chain made.
    """
    k = len(seen) - 1
    keys, values = seen[0]
    if k == 0:
        return F.scaled_dot_product_attention(q_BHTD, keys, values, is_causal=True)
    tokens = q_BHTD.shape[2]
    scale = q_BHTD.shape[-1] ** -0.5
    hidden = torch.ones(tokens, tokens, dtype=torch.bool).triu(1 - k)
    scores = (q_BHTD @ keys.transpose(2, 3)).float().masked_fill(hidden, -torch.inf)
    own = [(shift(key, k - s, 2), shift(value, k - s, 2)) for s, (key, value) in _later(seen)]
    own_scores = torch.stack([(q_BHTD * key).sum(-1).float() for key, _ in own], dim=-1)
    weights = (torch.cat([scores, own_scores], dim=-1) * scale).softmax(-1).to(values.dtype)
    out = weights[..., :tokens] @ values
    for place, (_, value) in enumerate(own):
        out = out + weights[..., tokens + place, None] * value
    return out


def _later(seen: list[KeyValues]) -> list[tuple[int, KeyValues]]:
    return list(enumerate(seen))[1:]


def save_head(head: EagleHead, folder: Path, max_positions: int = MAX_POSITIONS) -> None:
    """Write config.json and model.safetensors (bf16) in the layout of SafeAILab's EAGLE heads.

    `embed_tokens.weight` is left out: the head uses the target's embedding.
    """
    folder.mkdir(parents=True, exist_ok=True)
    shape = head.shape
    config: dict[str, Any] = {
        "architectures": ["LlamaForCausalLMEagle"],
        "model_type": "llama",
        "bias": False,
        "num_hidden_layers": 1,
        "vocab_size": shape.vocab_size,
        "hidden_size": shape.hidden,
        "intermediate_size": shape.intermediate,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        "hidden_act": "silu",
        "rms_norm_eps": shape.norm_eps,
        "rope_theta": shape.rope_theta,
        "max_position_embeddings": max_positions,
        "torch_dtype": "bfloat16",
    }
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    weights = {n: w for n, w in head.state_dict().items() if not n.startswith("fc.")}
    weights["fc.weight"] = head.fc.weight
    tensors = {n: w.detach().to(torch.bfloat16).contiguous() for n, w in weights.items()}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def load_head(folder: Path) -> EagleHead:
    """A head that `save_head` wrote, in fp32.

    Raises:
        FileNotFoundError: config.json or model.safetensors is missing.
        RuntimeError: tensors do not match the config.
    """
    config = json.loads((folder / "config.json").read_text())
    head = EagleHead(
        Shape(
            attention="gqa",
            vocab_size=config["vocab_size"],
            hidden=config["hidden_size"],
            intermediate=config["intermediate_size"],
            layers=1,
            heads=config["num_attention_heads"],
            kv_heads=config["num_key_value_heads"],
            head_dim=config["head_dim"],
            norm_eps=config["rms_norm_eps"],
            rope_theta=config["rope_theta"],
        )
    )
    tensors = {n: t.float() for n, t in load_file(folder / "model.safetensors").items()}
    head.fc.set_weight(tensors.pop("fc.weight"))
    head.load_state_dict(tensors | {f"fc.{n}": t for n, t in head.fc.state_dict().items()})
    return head
