"""Training-time networks: a small decoder with grouped-query or multi-head latent attention.

These are written for training (dense batches, no cache) and share no code with the engine, so the
engine's forward pass and the recipe check each other. Shapes: B sequences, T tokens, H heads,
K key/value heads, D head size, E hidden size.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

MAX_POSITIONS = 1024
ROPE_THETA = 10000.0


@dataclass(frozen=True)
class Shape:
    """Sizes of a decoder. `attention` is "gqa" or "mla"."""

    attention: str
    vocab_size: int = 2048
    hidden: int = 256
    intermediate: int = 704
    layers: int = 6
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 64
    kv_lora_rank: int = 96
    nope_dim: int = 32
    rope_dim: int = 32
    norm_eps: float = 1e-5
    rope_theta: float = ROPE_THETA


def rope_table(dim: int, length: int, theta: float = ROPE_THETA) -> tuple[Tensor, Tensor]:
    """cos and sin [length, dim / 2] of RoFormer's rotary angles (arXiv 2104.09864, eq. 15)."""
    rates = theta ** (-torch.arange(0, dim, 2, dtype=torch.float32) / dim)
    angles = torch.arange(length, dtype=torch.float32)[:, None] * rates
    return angles.cos(), angles.sin()


def rotate_halves(x_BHTD: Tensor, cos_TR: Tensor, sin_TR: Tensor) -> Tensor:
    """Rotary embedding over pairs (i, i + D/2): the Llama layout."""
    a, b = x_BHTD.chunk(2, dim=-1)
    return torch.cat([a * cos_TR - b * sin_TR, b * cos_TR + a * sin_TR], dim=-1)


def rotate_pairs(x_BHTD: Tensor, cos_TR: Tensor, sin_TR: Tensor) -> Tensor:
    """Rotary embedding over pairs (2i, 2i + 1): the DeepSeek layout."""
    a, b = x_BHTD[..., 0::2], x_BHTD[..., 1::2]
    return torch.stack([a * cos_TR - b * sin_TR, b * cos_TR + a * sin_TR], dim=-1).flatten(-2)


class RMSNorm(nn.Module):
    """x / rms(x) * weight, with the root mean square in fp32."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """Same shape as `x`."""
        return F.rms_norm(x.float(), (x.shape[-1],), self.weight, self.eps)


class GroupedQueryAttention(nn.Module):
    """Llama's attention; parameter names are the checkpoint's."""

    def __init__(self, shape: Shape, input_size: int | None = None) -> None:
        super().__init__()
        self.shape = shape
        size = input_size or shape.hidden
        width, kv_width = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
        self.q_proj = nn.Linear(size, width, bias=False)
        self.k_proj = nn.Linear(size, kv_width, bias=False)
        self.v_proj = nn.Linear(size, kv_width, bias=False)
        self.o_proj = nn.Linear(width, shape.hidden, bias=False)
        cos, sin = rope_table(shape.head_dim, MAX_POSITIONS + 8, shape.rope_theta)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)

    def forward(self, x_BTE: Tensor, mask: Tensor | None = None, shift: int = 0) -> Tensor:
        """Causal attention (or under a boolean [T, S] `mask`); positions start at `shift`."""
        batch, tokens, _ = x_BTE.shape
        cos, sin = self.cos[shift : shift + tokens], self.sin[shift : shift + tokens]
        heads = lambda y: y.view(batch, tokens, -1, self.shape.head_dim).transpose(1, 2)  # noqa: E731
        q = rotate_halves(heads(self.q_proj(x_BTE)), cos, sin)
        k = rotate_halves(heads(self.k_proj(x_BTE)), cos, sin)
        v = heads(self.v_proj(x_BTE))
        out = F.scaled_dot_product_attention(
            q.to(v.dtype), k.to(v.dtype), v, attn_mask=mask, is_causal=mask is None, enable_gqa=True
        )
        return self.o_proj(out.transpose(1, 2).reshape(batch, tokens, -1))


class LatentAttention(nn.Module):
    """DeepSeek's multi-head latent attention (arXiv 2405.04434, section 2.1), expanded form."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        query_dim = shape.nope_dim + shape.rope_dim
        self.q_proj = nn.Linear(shape.hidden, shape.heads * query_dim, bias=False)
        self.kv_a_proj_with_mqa = nn.Linear(
            shape.hidden, shape.kv_lora_rank + shape.rope_dim, bias=False
        )
        self.kv_a_layernorm = RMSNorm(shape.kv_lora_rank, 1e-6)
        self.kv_b_proj = nn.Linear(
            shape.kv_lora_rank, shape.heads * (shape.nope_dim + shape.head_dim), bias=False
        )
        self.o_proj = nn.Linear(shape.heads * shape.head_dim, shape.hidden, bias=False)
        cos, sin = rope_table(shape.rope_dim, MAX_POSITIONS + 8, shape.rope_theta)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)

    def forward(self, x_BTE: Tensor) -> Tensor:
        """Causal attention over positions 0 .. T-1."""
        s = self.shape
        batch, tokens, _ = x_BTE.shape
        cos, sin = self.cos[:tokens], self.sin[:tokens]
        q = self.q_proj(x_BTE).view(batch, tokens, s.heads, -1).transpose(1, 2)
        q_nope, q_rope = q.split([s.nope_dim, s.rope_dim], dim=-1)
        latent, k_rope = self.kv_a_proj_with_mqa(x_BTE).split([s.kv_lora_rank, s.rope_dim], dim=-1)
        kv = self.kv_b_proj(self.kv_a_layernorm(latent)).view(batch, tokens, s.heads, -1)
        k_nope, v = kv.transpose(1, 2).split([s.nope_dim, s.head_dim], dim=-1)
        k_rope = rotate_pairs(k_rope[:, None], cos, sin).expand(-1, s.heads, -1, -1)
        query = torch.cat([q_nope, rotate_pairs(q_rope, cos, sin).to(q.dtype)], dim=-1)
        key = torch.cat([k_nope, k_rope.to(k_nope.dtype)], dim=-1)
        out = F.scaled_dot_product_attention(query, key, v, is_causal=True)
        return self.o_proj(out.transpose(1, 2).reshape(batch, tokens, -1))


class SwiGLU(nn.Module):
    """down(silu(gate(x)) * up(x)) (arXiv 2002.05202)."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(shape.hidden, shape.intermediate, bias=False)
        self.up_proj = nn.Linear(shape.hidden, shape.intermediate, bias=False)
        self.down_proj = nn.Linear(shape.intermediate, shape.hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Same shape as `x`."""
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Block(nn.Module):
    """One pre-norm decoder layer."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        attention = {"gqa": GroupedQueryAttention, "mla": LatentAttention}[shape.attention]
        self.input_layernorm = RMSNorm(shape.hidden, shape.norm_eps)
        self.self_attn = attention(shape)
        self.post_attention_layernorm = RMSNorm(shape.hidden, shape.norm_eps)
        self.mlp = SwiGLU(shape)

    def forward(self, x: Tensor) -> Tensor:
        """Residual stream in, residual stream out [B, T, E]."""
        x = x + self.self_attn(self.input_layernorm(x))
        return x + self.mlp(self.post_attention_layernorm(x))


class Decoder(nn.Module):
    """A causal language model with tied embeddings."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.embed_tokens = nn.Embedding(shape.vocab_size, shape.hidden)
        self.layers = nn.ModuleList(Block(shape) for _ in range(shape.layers))
        self.norm = RMSNorm(shape.hidden, shape.norm_eps)
        for name, weight in self.named_parameters():
            if weight.ndim == 2:
                nn.init.normal_(weight, std=0.02)
            if name.endswith(("o_proj.weight", "down_proj.weight")):
                nn.init.zeros_(weight)

    def features(self, ids_BT: Tensor) -> Tensor:
        """Final-norm features [B, T, E]: what the head reads and what EAGLE learns from."""
        x = self.embed_tokens(ids_BT)
        for layer in self.layers:
            x = layer(x)
        return self.norm(x)

    def logits(self, features: Tensor) -> Tensor:
        """[..., vocab] in the dtype of the surrounding autocast."""
        return F.linear(features, self.embed_tokens.weight)
