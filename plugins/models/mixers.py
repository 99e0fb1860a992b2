"""The two attention layers around the backend's attention: projections and rotary embedding.

Legend: T tokens, E hidden size, H query heads, K key/value heads, D head size; MLA: N and R the
query's parts without and with rotary embedding, C latent rank, V value head size.
"""

import torch
from torch import Tensor

from interlock.core.model import Attend, AttentionSpec, HeadsInput, LatentInput
from interlock.plugins.models.layers import Linear, Loader
from interlock.plugins.models.rope import rotate

Rotation = tuple[Tensor, Tensor]
"""cos and sin of the step's positions, [T, 1, R / 2]."""

LATENT_NORM_EPS = 1e-6  # DeepSeek's code takes the norm's default here, not rms_norm_eps


class HeadsMixer:
    """Query, key and value heads with rotary embedding (MHA, GQA, MQA)."""

    def __init__(
        self, load: Loader, prefix: str, spec: AttentionSpec, hidden: int, biased: bool,
        output_biased: bool,
    ) -> None:  # fmt: skip
        self.spec = spec
        width, kv_width = spec.num_heads * spec.head_dim, spec.num_kv_heads * spec.head_dim
        parts = {"q_proj": width, "k_proj": kv_width, "v_proj": kv_width}
        self.qkv = load.linear({f"{prefix}.{n}": w for n, w in parts.items()}, hidden, biased)
        self.out = load.linear({f"{prefix}.o_proj": hidden}, width, output_biased)

    def __call__(self, x_TE: Tensor, rotation: Rotation, layer: int, attend: Attend) -> Tensor:
        """[T, E] -> [T, E]."""
        spec = self.spec
        heads, keys_end = spec.num_heads, spec.num_heads + spec.num_kv_heads
        qkv_THD = self.qkv(x_TE).view(len(x_TE), -1, spec.head_dim)
        qk_THD = rotate(qkv_THD[:, :keys_end], *rotation)
        inputs = HeadsInput(qk_THD[:, :heads], qk_THD[:, heads:], qkv_THD[:, keys_end:])
        return self.out(attend(layer, spec, inputs).flatten(1))


class LatentMixer:
    """DeepSeek's multi-head latent attention (arXiv 2405.04434, section 2.1).

    The rotated rows of interleaved checkpoints are put into half order at load, so that one
    rotation serves both layouts; scores do not depend on a permutation that q and k share.
    """

    def __init__(
        self, load: Loader, prefix: str, spec: AttentionSpec, hidden: int, biased: bool,
        query_rank: int | None, interleaved: bool,
    ) -> None:  # fmt: skip
        self.spec = spec
        heads, rank = spec.num_heads, spec.latent_rank
        width, kv_width = heads * spec.head_dim, rank + spec.rope_dim
        query = {f"{prefix}.q_a_proj": query_rank} if query_rank else {f"{prefix}.q_proj": width}
        kv = {f"{prefix}.kv_a_proj_with_mqa": kv_width}
        self.query_down = load.linear(query, hidden, biased and query_rank is not None)
        self.kv_down = load.linear(kv, hidden, biased)
        self.query_norm = self.query_up = None
        if query_rank:
            self.query_norm = load.norm(f"{prefix}.q_a_layernorm", query_rank, LATENT_NORM_EPS)
            self.query_up = load.linear({f"{prefix}.q_b_proj": width}, query_rank, False)
        if interleaved:
            _to_half_order(self.query_up or self.query_down, heads, spec.nope_dim)
            _to_half_order(self.kv_down, 1, rank)
        self.latent_norm = load.norm(f"{prefix}.kv_a_layernorm", rank, LATENT_NORM_EPS)
        expanded = spec.nope_dim + spec.v_head_dim
        up = load.tensor(f"{prefix}.kv_b_proj.weight", (heads * expanded, rank))
        up_HXC = up.view(heads, expanded, rank)
        self.up_k_HNC, self.up_v_HVC = up_HXC[:, : spec.nope_dim], up_HXC[:, spec.nope_dim :]
        self.out = load.linear({f"{prefix}.o_proj": hidden}, heads * spec.v_head_dim, biased)

    def __call__(self, x_TE: Tensor, rotation: Rotation, layer: int, attend: Attend) -> Tensor:
        """[T, E] -> [T, E]."""
        spec = self.spec
        query = self.query_down(x_TE)
        if self.query_norm and self.query_up:
            query = self.query_up(self.query_norm(query))
        q_THD = query.view(len(x_TE), -1, spec.head_dim)
        kv_TX = self.kv_down(x_TE)
        inputs = LatentInput(
            q_THD[..., : spec.nope_dim],
            rotate(q_THD[..., spec.nope_dim :], *rotation),
            self.latent_norm(kv_TX[:, : spec.latent_rank]),
            rotate(kv_TX[:, None, spec.latent_rank :], *rotation)[:, 0],
            self.up_k_HNC,
            self.up_v_HVC,
        )
        return self.out(attend(layer, spec, inputs).flatten(1))


def _to_half_order(linear: Linear, heads: int, skip: int) -> None:
    """Reorder each head's outputs after `skip` from pairs (2i, 2i+1) to (i, i + R/2), in place."""
    rows = linear.weight.shape[0]
    order_HS = torch.arange(rows, device=linear.weight.device).view(heads, -1)
    rotated = order_HS[:, skip:]
    order = torch.cat([order_HS[:, :skip], rotated[:, 0::2], rotated[:, 1::2]], dim=1).flatten()
    linear.weight = linear.weight[order]
    linear.bias = None if linear.bias is None else linear.bias[order]
