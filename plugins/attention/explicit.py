"""Softmax attention with soft caps and sinks, which torch's fused kernels do not compute.

Legend: R rows, Q queries, S entries, H query heads, K key/value heads, G = H / K,
M = Q * G, D and V head sizes.
"""

import torch
from torch import Tensor

MOST_SCORES = 1 << 22
"""Scores held at once (16 MiB in fp32), if one query has no more: bounds memory at any length."""


def explicit_attention(
    q_RQHD: Tensor,
    k_RSKD: Tensor,
    v_RSKV: Tensor,
    mask_RQS: Tensor | None,
    causal: bool,
    scale: float,
    softcap: float | None = None,
    sinks_H: Tensor | None = None,
) -> Tensor:
    """[R, Q, H, V] in the queries' dtype, with the arguments of `masked_attention`.

    `softcap` and `sinks_H` are those of `AttentionSpec`. Everything is computed in fp32 or the
    queries' wider dtype. With sinks, a query that sees nothing gets zeros.
    """
    (rows, queries, heads, size), (_, entries, kv_heads, _) = q_RQHD.shape, k_RSKD.shape
    wide = torch.promote_types(q_RQHD.dtype, torch.float32)
    k_RKSD, v_RKSV = (x.to(wide).transpose(1, 2) for x in (k_RSKD, v_RSKV))
    out_RQHV = q_RQHD.new_empty(rows, queries, heads, v_RSKV.shape[-1])
    tile = max(1, MOST_SCORES // (rows * heads * entries))
    for first in range(0, queries, tile):
        end = min(first + tile, queries)
        seen = end if causal else entries  # a causal query sees nothing after itself
        hidden_RQS = _hidden(mask_RQS, causal, first, end, q_RQHD.device)
        q_RQKGD = q_RQHD[:, first:end].to(wide).reshape(rows, end - first, kv_heads, -1, size)
        q_RKMD = q_RQKGD.permute(0, 2, 3, 1, 4).flatten(2, 3)
        scores_RKMS = q_RKMD @ k_RKSD[:, :, :seen].mT * scale
        if softcap is not None:
            scores_RKMS.div_(softcap).tanh_().mul_(softcap)
        scores_RKGQS = scores_RKMS.view(rows, kv_heads, -1, end - first, seen)
        if hidden_RQS is not None:
            scores_RKGQS.masked_fill_(hidden_RQS[:, None, None], -torch.inf)
        weights_RKMS = _weights(scores_RKGQS, sinks_H).flatten(2, 3)
        sums_RKMV = weights_RKMS @ v_RKSV[:, :, :seen]
        sums_RHQV = sums_RKMV.view(rows, heads, end - first, -1)
        out_RQHV[:, first:end] = sums_RHQV.transpose(1, 2)
    return out_RQHV


def _hidden(
    mask_RQS: Tensor | None, causal: bool, first: int, end: int, device: torch.device
) -> Tensor | None:
    """bool [R or 1, end - first, S]: what queries `first` .. `end` must not see."""
    if causal:
        ones = torch.ones(1, end - first, end, dtype=torch.bool, device=device)
        return ones.triu(first + 1)
    return None if mask_RQS is None else ~mask_RQS[:, first:end]


def _weights(scores_RKGQS: Tensor, sinks_H: Tensor | None) -> Tensor:
    """Softmax over entries; a sink adds to the sum alone. Overwrites the scores."""
    most = scores_RKGQS.amax(-1, keepdim=True)
    if sinks_H is None:
        weights = scores_RKGQS.sub_(most).exp_()
        return weights.div_(weights.sum(-1, keepdim=True))
    sinks = sinks_H.to(most.dtype).view(scores_RKGQS.shape[1], -1, 1, 1)
    most = torch.maximum(most, sinks)
    weights = scores_RKGQS.sub_(most).exp_()
    return weights.div_(weights.sum(-1, keepdim=True) + (sinks - most).exp())
