"""The two attention layers around the backend's attention: projections and rotary embedding.

A rank computes its own query heads. Legend: T tokens, E hidden size, H query heads, K key/value
heads, D head size; MLA: N and R the query's parts without and with rotary embedding, C latent rank,
V value head size.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from interlock.core.model import Attend, AttentionSpec, HeadsInput, LatentInput
from interlock.plugins.models.layers import Loader, Share, whole
from interlock.plugins.models.norms import RMSNorm, SplitRMSNorm

Rotation = tuple[Tensor, Tensor]
"""cos and sin of the step's positions, [T, 1, R]."""
Norm = RMSNorm | SplitRMSNorm

LATENT_NORM_EPS = 1e-6  # DeepSeek's code takes the norm's default here, not rms_norm_eps


@dataclass(frozen=True)
class MixerOptions:
    """What families vary in the projections around attention.

    The `biased` fields make a bias required. `qk_norm` normalises queries and keys before the
    rotation, each head by itself ("head") or over all heads together ("width").
    """

    biased: bool = False
    output_biased: bool = False
    qk_norm: Literal["none", "head", "width"] = "none"
    norm_eps: float = 1e-6
    norm_offset: float = 0.0
    query_rank: int | None = None
    interleaved: bool = False


class HeadsMixer:
    """Query, key and value heads with rotary embedding of each head's first entries."""

    def __init__(
        self, load: Loader, prefix: str, spec: AttentionSpec, hidden: int, options: MixerOptions
    ) -> None:
        self.spec = spec.on(load.ranks)
        query = load.share(spec.num_heads).times(spec.head_dim)
        key = load.kv_share(spec.num_kv_heads).times(spec.head_dim)
        parts = {"q_proj": query, "k_proj": key, "v_proj": key}
        named = {f"{prefix}.{name}": share for name, share in parts.items()}
        self.qkv = load.linear(named, whole(hidden), options.biased)
        self.norms = _qk_norms(load, prefix, spec, query, key, options)
        self.norm_heads = options.qk_norm == "head"
        self.sinks_H: Tensor | None = None
        if spec.sinks:
            heads = load.share(spec.num_heads)
            self.sinks_H = load.wide_tensor(f"{prefix}.sinks", (heads.total,), (heads.slice,))
        self.out = load.linear({f"{prefix}.o_proj": whole(hidden)}, query, options.output_biased)

    def __call__(self, x_TE: Tensor, rotation: Rotation, layer: int, attend: Attend) -> Tensor:
        """[T, E] -> [T, E]."""
        spec = self.spec
        heads, keys_end = spec.num_heads, spec.num_heads + spec.num_kv_heads
        qkv_THD = self.qkv(x_TE).view(len(x_TE), -1, spec.head_dim)
        qk_THD = qkv_THD[:, :keys_end]
        if self.norms is not None:
            qk_THD = self._normalised(qk_THD, *self.norms)
        qk_THD = self.out.rows.rotate(qk_THD, *rotation)
        q_THD, k_TKD, v_TKV = qk_THD[:, :heads], qk_THD[:, heads:], qkv_THD[:, keys_end:]
        inputs = HeadsInput(q_THD, k_TKD, v_TKV, self.sinks_H)
        return self.out(attend(layer, spec, inputs).flatten(1))

    def _normalised(self, qk_THD: Tensor, query_norm: Norm, key_norm: Norm) -> Tensor:
        q_THD, k_THD = qk_THD.tensor_split((self.spec.num_heads,), dim=1)
        if self.norm_heads:
            return torch.cat((query_norm(q_THD), key_norm(k_THD)), dim=1)
        q_TX, k_TX = query_norm(q_THD.flatten(1)), key_norm(k_THD.flatten(1))
        return torch.cat((q_TX, k_TX), dim=1).view(qk_THD.shape)


class LatentMixer:
    """DeepSeek's multi-head latent attention (arXiv 2405.04434, section 2.1).

    The rotated rows of interleaved checkpoints are put into half order at load, so that one
    rotation serves both layouts; scores do not depend on a permutation that q and k share.
    """

    def __init__(
        self, load: Loader, prefix: str, spec: AttentionSpec, hidden: int, options: MixerOptions
    ) -> None:
        self.spec = spec.on(load.ranks)
        heads, rank, query_rank = load.share(spec.num_heads), spec.latent_rank, options.query_rank
        width, kv_width = heads.times(spec.head_dim), whole(rank + spec.rope_dim)
        biased = options.biased
        query_order = kv_order = None
        if options.interleaved:
            query_order = _half_order(heads.size, spec.head_dim, spec.nope_dim).to(load.device)
            kv_order = _half_order(1, kv_width.size, rank).to(load.device)
        self.query_norm = self.query_up = None
        if query_rank:
            down, up = {f"{prefix}.q_a_proj": whole(query_rank)}, {f"{prefix}.q_b_proj": width}
            self.query_down = load.linear(down, whole(hidden), biased)
            self.query_norm = load.norm(f"{prefix}.q_a_layernorm", query_rank, LATENT_NORM_EPS)
            self.query_up = load.linear(up, whole(query_rank), False, order=query_order)
        else:
            query = {f"{prefix}.q_proj": width}
            self.query_down = load.linear(query, whole(hidden), False, order=query_order)
        kv = {f"{prefix}.kv_a_proj_with_mqa": kv_width}
        self.kv_down = load.linear(kv, whole(hidden), biased, order=kv_order)
        self.latent_norm = load.norm(f"{prefix}.kv_a_layernorm", rank, LATENT_NORM_EPS)
        expanded = heads.times(spec.nope_dim + spec.v_head_dim)
        up_XC = load.tensor(f"{prefix}.kv_b_proj.weight", (expanded.total, rank), (expanded.slice,))
        up_HXC = up_XC.view(heads.size, -1, rank)
        self.up_k_HNC, self.up_v_HVC = up_HXC[:, : spec.nope_dim], up_HXC[:, spec.nope_dim :]
        values = heads.times(spec.v_head_dim)
        self.out = load.linear({f"{prefix}.o_proj": whole(hidden)}, values, biased)

    def __call__(self, x_TE: Tensor, rotation: Rotation, layer: int, attend: Attend) -> Tensor:
        """[T, E] -> [T, E]."""
        spec = self.spec
        query = self.query_down(x_TE)
        if self.query_norm and self.query_up:
            query = self.query_up(self.query_norm(query))
        q_THD = query.view(len(x_TE), -1, spec.head_dim)
        kv_TX = self.kv_down(x_TE)
        rotate = self.out.rows.rotate
        inputs = LatentInput(
            q_THD[..., : spec.nope_dim],
            rotate(q_THD[..., spec.nope_dim :], *rotation),
            self.latent_norm(kv_TX[:, : spec.latent_rank]),
            rotate(kv_TX[:, None, spec.latent_rank :], *rotation)[:, 0],
            self.up_k_HNC,
            self.up_v_HVC,
        )
        return self.out(attend(layer, spec, inputs).flatten(1))


def _qk_norms(
    load: Loader, prefix: str, spec: AttentionSpec, query: Share, key: Share, options: MixerOptions
) -> tuple[Norm, Norm] | None:
    names = f"{prefix}.q_norm", f"{prefix}.k_norm"
    eps, offset = options.norm_eps, options.norm_offset
    if options.qk_norm == "none":
        return None
    if options.qk_norm == "head":
        query_norm, key_norm = (load.norm(name, spec.head_dim, eps, offset) for name in names)
        return query_norm, key_norm
    return load.split_norm(names[0], query, eps), load.split_norm(names[1], key, eps)


def _half_order(heads: int, size: int, skip: int) -> Tensor:
    """Each head's `size` outputs after `skip` from pairs (2i, 2i+1) to (i, i + R/2)."""
    order_HS = torch.arange(heads * size).view(heads, size)
    rotated = order_HS[:, skip:]
    return torch.cat([order_HS[:, :skip], rotated[:, 0::2], rotated[:, 1::2]], dim=1).flatten()
