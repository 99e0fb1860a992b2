"""Attention of whole windows at once, for running any decoder of Interlock without a cache.

Legend: B windows, T tokens of each, H query heads, K key/value heads, D head size, V value size.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from interlock.core.model import Attend, AttentionInput, AttentionSpec, HeadsInput


def dense_attend(windows: int) -> Attend:
    """Causal attention within each of `windows` equally long windows that lie one after another."""

    def attend(layer: int, spec: AttentionSpec, inputs: AttentionInput) -> Tensor:
        if isinstance(inputs, HeadsInput):
            q, k, v, sinks_H = inputs.q_THD, inputs.k_TKD, inputs.v_TKV, inputs.sinks_H
        else:
            k_nope = torch.einsum("tc,hnc->thn", inputs.latent_TC, inputs.up_k_HNC)
            k_rope = inputs.k_rope_TR[:, None].expand(-1, spec.num_heads, -1)
            q = torch.cat([inputs.q_nope_THN, inputs.q_rope_THR], dim=-1)
            k = torch.cat([k_nope.to(k_rope.dtype), k_rope], dim=-1)
            v = torch.einsum("tc,hvc->thv", inputs.latent_TC, inputs.up_v_HVC)
            sinks_H = None
        q, k, v = (x.unflatten(0, (windows, -1)).transpose(1, 2).to(q.dtype) for x in (q, k, v))
        if spec.window is None and spec.softcap is None and sinks_H is None:
            out_BHTV = F.scaled_dot_product_attention(
                q, k, v, is_causal=True, scale=spec.scale, enable_gqa=True
            )
        else:
            out_BHTV = _explicit(spec, q, k, v, sinks_H)
        return out_BHTV.transpose(1, 2).flatten(0, 1)

    return attend


def _explicit(
    spec: AttentionSpec, q_BHTD: Tensor, k_BKTD: Tensor, v_BKTV: Tensor, sinks_H: Tensor | None
) -> Tensor:
    """With a window, a cap or sinks; see `AttentionSpec`."""
    group, tokens = spec.num_heads // spec.num_kv_heads, q_BHTD.shape[2]
    k, v = (x.repeat_interleave(group, dim=1) for x in (k_BKTD, v_BKTV))
    wide = torch.promote_types(q_BHTD.dtype, torch.float32)
    scores = q_BHTD.to(wide) @ k.to(wide).mT * spec.scale
    if spec.softcap is not None:
        scores = torch.tanh(scores / spec.softcap) * spec.softcap
    seen = torch.ones(tokens, tokens, dtype=torch.bool).tril()
    if spec.window is not None:
        seen = seen.triu(1 - spec.window)
    scores = scores.masked_fill(~seen, -torch.inf)
    if sinks_H is not None:
        sink = sinks_H.to(wide)[:, None, None].expand(*scores.shape[:3], 1)
        scores = torch.cat([scores, sink], dim=-1)
    return (scores.softmax(-1)[..., :tokens] @ v.to(wide)).to(v.dtype)
