"""Attention of drafting steps unrolled in training: every row starts a chain of its own.

Row c of step k is draft k + 1 of the chain whose last committed row is c; it sits at position c + k
(training-time test, arXiv 2503.01840, section 3.2). Shapes: B sequences, T rows, H query heads,
K key/value heads, D head size.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from interlock.models.recipe.network import GroupedQueryAttention, rotate_halves

KeyValues = tuple[Tensor, Tensor]


def ahead(x: Tensor, rows: int) -> Tensor:
    """[B, T, ...] whose row i is what row i + `rows` was; zeros at the end."""
    kept = x[:, rows:]
    return torch.cat([kept, torch.zeros_like(x[:, : x.shape[1] - kept.shape[1]])], dim=1)


def chain_attention(
    attention: GroupedQueryAttention, x_BTE: Tensor, seen: list[KeyValues]
) -> Tensor:
    """[B, T, hidden] of the next step; its keys and values [B, H, T, D] are added to `seen`.

    A query of row c sees the rows j <= c of step 0 and, of every later step, row c.
    """
    step, (batch, tokens, _) = len(seen), x_BTE.shape
    cos, sin = attention.cos[step : step + tokens], attention.sin[step : step + tokens]
    q, k, v = (
        projection(x_BTE).view(batch, tokens, -1, attention.shape.head_dim).transpose(1, 2)
        for projection in (attention.q_proj, attention.k_proj, attention.v_proj)
    )
    group = attention.shape.heads // attention.shape.kv_heads
    q, k = rotate_halves(q, cos, sin).to(v.dtype), rotate_halves(k, cos, sin).to(v.dtype)
    seen.append((k.repeat_interleave(group, dim=1), v.repeat_interleave(group, dim=1)))
    return attention.o_proj(_attend(q, seen).transpose(1, 2).flatten(2))


def _attend(q_BHTD: Tensor, seen: list[KeyValues]) -> Tensor:
    (keys, values), *own = seen
    if not own:
        return F.scaled_dot_product_attention(q_BHTD, keys, values, is_causal=True)
    tokens = q_BHTD.shape[2]
    hidden = torch.ones(tokens, tokens, dtype=torch.bool).triu(1)
    scores = (q_BHTD @ keys.mT).masked_fill(hidden, -torch.inf)
    own_scores = torch.stack([(q_BHTD * key).sum(-1) for key, _ in own], dim=-1)
    scale = q_BHTD.shape[-1] ** -0.5
    weights = (torch.cat([scores, own_scores], dim=-1) * scale).softmax(-1).to(values.dtype)
    out = weights[..., :tokens] @ values
    for place, (_, value) in enumerate(own):
        out = out + weights[..., tokens + place, None] * value
    return out
