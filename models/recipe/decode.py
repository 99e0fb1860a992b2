"""Continue prompts with a training-time decoder, keeping keys and values between tokens.

Shapes: B sequences, T tokens, S keys so far, H heads, D head size, E hidden size.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from interlock.models.recipe.network import (
    Decoder,
    GroupedQueryAttention,
    LatentAttention,
    rotate_halves,
    rotate_pairs,
)


@torch.no_grad()
def continue_prompts(
    model: Decoder, prompts_BT: Tensor, count: int, temperatures_B: Tensor, seed: int = 0
) -> Tensor:
    """[B, T + count]: the prompts followed by `count` tokens of the model.

    Row b is drawn at `temperatures_B[b]`; 0 is argmax (lowest id on ties).
    """
    generator = torch.Generator().manual_seed(seed)
    cache: list[tuple[Tensor, Tensor] | None] = [None] * len(model.layers)
    ids, fresh = prompts_BT, prompts_BT
    for _ in range(count):
        logits = model.logits(_features(model, fresh, cache)[:, -1]).float()
        uniform = torch.rand(logits.shape, generator=generator).clamp_(1e-9, 1 - 1e-6)
        gumbel = -(-uniform.log()).log()
        fresh = (logits + temperatures_B[:, None] * gumbel).argmax(-1, keepdim=True)
        ids = torch.cat([ids, fresh], dim=1)
    return ids


def _features(model: Decoder, ids_BT: Tensor, cache: list[tuple[Tensor, Tensor] | None]) -> Tensor:
    """Final-norm features of new tokens; `cache` holds each layer's keys and values and grows."""
    x = model.embed_tokens(ids_BT)
    for number, layer in enumerate(model.layers):
        past = cache[number]
        attention = layer.self_attn
        project = project_heads if model.shape.attention == "gqa" else project_latent
        q, k, v = project(attention, layer.input_layernorm(x), past[0].shape[2] if past else 0)
        if past is not None:
            k, v = torch.cat([past[0], k], dim=2), torch.cat([past[1], v], dim=2)
        cache[number] = (k, v)
        out = F.scaled_dot_product_attention(q, k, v, is_causal=past is None, enable_gqa=True)
        x = x + attention.o_proj(out.transpose(1, 2).flatten(2))
        x = x + layer.mlp(layer.post_attention_layernorm(x))
    return model.norm(x)


def project_heads(
    attention: GroupedQueryAttention, x_BTE: Tensor, start: int
) -> tuple[Tensor, Tensor, Tensor]:
    """q, k, v [B, H, T, D] of tokens at positions start, start + 1, ..."""
    batch, tokens, _ = x_BTE.shape
    cos, sin = attention.cos[start : start + tokens], attention.sin[start : start + tokens]
    q, k, v = (
        projection(x_BTE).view(batch, tokens, -1, attention.shape.head_dim).transpose(1, 2)
        for projection in (attention.q_proj, attention.k_proj, attention.v_proj)
    )
    return rotate_halves(q, cos, sin).to(v.dtype), rotate_halves(k, cos, sin).to(v.dtype), v


def project_latent(
    attention: LatentAttention, x_BTE: Tensor, start: int
) -> tuple[Tensor, Tensor, Tensor]:
    """q, k, v [B, H, T, D] with the latent expanded to keys and values of every head."""
    s = attention.shape
    batch, tokens, _ = x_BTE.shape
    cos, sin = attention.cos[start : start + tokens], attention.sin[start : start + tokens]
    q = attention.q_proj(x_BTE).view(batch, tokens, s.heads, -1).transpose(1, 2)
    q_nope, q_rope = q.split([s.nope_dim, s.rope_dim], dim=-1)
    latent, k_rope = attention.kv_a_proj_with_mqa(x_BTE).split([s.kv_lora_rank, s.rope_dim], -1)
    expanded = attention.kv_b_proj(attention.kv_a_layernorm(latent))
    kv = expanded.view(batch, tokens, s.heads, -1).transpose(1, 2)
    k_nope, v = kv.split([s.nope_dim, s.head_dim], dim=-1)
    k_rope = rotate_pairs(k_rope[:, None], cos, sin).expand(-1, s.heads, -1, -1)
    query = torch.cat([q_nope, rotate_pairs(q_rope, cos, sin).to(q.dtype)], dim=-1)
    return query, torch.cat([k_nope, k_rope.to(k_nope.dtype)], dim=-1), v
