"""Softmax attention of padded rows, over torch's fused kernel on any device.

Legend: R rows, Q queries, S entries, H query heads, K key/value heads, G = H / K,
M = Q * G, D and V head sizes.
"""

import torch.nn.functional as F
from torch import Tensor

FOLDED_QUERIES = 32
"""Up to this many queries, the G heads that share a key head become queries of one product."""


def masked_attention(
    q_RQHD: Tensor,
    k_RSKD: Tensor,
    v_RSKV: Tensor,
    mask_RQS: Tensor | None,
    causal: bool,
    scale: float,
) -> Tensor:
    """[R, Q, H, V] in the queries' dtype; query head h reads key head h // G, which is not copied.

    Softmax and sums are at least fp32. A query that sees nothing has no defined result. `causal`
    (one row, no mask, Q = S): query i sees entries 0 .. i.
    """
    value_size = v_RSKV.shape[-1]
    # The fused CPU kernel wants one head size; zeros change neither scores nor kept outputs.
    size = max(q_RQHD.shape[-1], value_size)
    q_RQHD, k_RSKD, v_RSKV = (_padded(x, size) for x in (q_RQHD, k_RSKD, v_RSKV))
    if causal or (len(q_RQHD) == 1 and q_RQHD.shape[1] > FOLDED_QUERIES):
        mask_QS = None if mask_RQS is None else mask_RQS[0]
        out_RQHD = _one_row(q_RQHD[0], k_RSKD[0], v_RSKV[0], mask_QS, causal, scale)[None]
    else:
        out_RQHD = _folded(q_RQHD, k_RSKD, v_RSKV, mask_RQS, scale)
    return out_RQHD[..., :value_size]


def _one_row(
    q_QHD: Tensor, k_SKD: Tensor, v_SKD: Tensor, mask_QS: Tensor | None, causal: bool, scale: float
) -> Tensor:
    """A long row: key heads are the kernel's batch, the G query heads of each its heads."""
    kv_heads = k_SKD.shape[1]
    q_KGQD = q_QHD.reshape(len(q_QHD), kv_heads, -1, q_QHD.shape[-1]).permute(1, 2, 0, 3)
    group = q_KGQD.shape[1]
    k_KGSD, v_KGSD = (x.transpose(0, 1)[:, None].expand(-1, group, -1, -1) for x in (k_SKD, v_SKD))
    out_KGQD = F.scaled_dot_product_attention(
        q_KGQD, k_KGSD, v_KGSD, attn_mask=mask_QS, is_causal=causal, scale=scale
    )
    return out_KGQD.permute(2, 0, 1, 3).flatten(1, 2)


def _folded(
    q_RQHD: Tensor, k_RSKD: Tensor, v_RSKD: Tensor, mask_RQS: Tensor | None, scale: float
) -> Tensor:
    """Few queries a row: each key head answers its Q * G queries in one product."""
    (rows, queries, heads, size), kv_heads = q_RQHD.shape, k_RSKD.shape[2]
    group = heads // kv_heads
    q_RKQGD = q_RQHD.reshape(rows, queries, kv_heads, group, size).transpose(1, 2)
    mask_R1MS = None
    if mask_RQS is not None:
        # One query: the kernel broadcasts the mask over the G heads by itself.
        mask_R1MS = (mask_RQS if queries == 1 else mask_RQS.repeat_interleave(group, 1))[:, None]
    out_RKMD = F.scaled_dot_product_attention(
        q_RKQGD.flatten(2, 3),
        k_RSKD.transpose(1, 2),
        v_RSKD.transpose(1, 2),
        attn_mask=mask_R1MS,
        scale=scale,
    )
    out_RKQGD = out_RKMD.reshape(rows, kv_heads, queries, group, size)
    return out_RKQGD.transpose(1, 2).reshape(rows, queries, heads, size)


def _padded(x: Tensor, size: int) -> Tensor:
    return x if x.shape[-1] == size else F.pad(x, (0, size - x.shape[-1]))
