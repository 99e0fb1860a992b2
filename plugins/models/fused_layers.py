"""Which decoders run few rows by compiled calls from layer to layer: plain Llama-like ones."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from interlock.plugins.models.layers import GatedMLP, Linear
from interlock.plugins.models.mixers import HeadsMixer
from interlock.plugins.models.native.few_rows import FewRowsProduct
from interlock.plugins.models.native.few_rows_layers import FewRowsLayers, LayerParts
from interlock.plugins.models.norms import RMSNorm
from interlock.plugins.models.products import PackedProduct
from interlock.plugins.models.row_tiles import swiglu

if TYPE_CHECKING:
    from interlock.plugins.models.decoder import Block


def fused_layers(blocks: Sequence["Block"]) -> FewRowsLayers | None:
    """The compiled form of these layers; None: one of them does something that it does not.

    Not in it: norms after attention or MLP and of queries or keys, latent attention, experts, gates
    other than swiglu, adapters, weights that are quantised or joined over ranks.
    """
    parts = [_parts_of(block) for block in blocks]
    found = [part for part in parts if part is not None]
    sizes = {(p.spec.num_heads, p.spec.num_kv_heads, p.spec.head_dim, p.down.inputs) for p in found}
    alike = len(found) == len(blocks) and len(sizes) == 1
    return FewRowsLayers(found) if alike else None


def _parts_of(block: "Block") -> LayerParts | None:
    mixer, mlp = block.mixer, block.mlp
    if not isinstance(mixer, HeadsMixer) or not isinstance(mlp, GatedMLP):
        return None
    before = [_norm(norm) for norm in (block.before_attention, block.before_mlp)]
    products = [_few(linear) for linear in (mixer.qkv, mixer.out, mlp.gate_up, mlp.down)]
    more = (block.after_attention, block.after_mlp, mixer.norms)
    if mlp.gating is not swiglu or any(part is not None for part in more):
        return None
    attention_norm, mlp_norm = before
    qkv, out, gate_up, down = products
    if attention_norm is None or mlp_norm is None:
        return None
    if qkv is None or out is None or gate_up is None or down is None:
        return None
    return LayerParts(mixer.spec, mixer.sinks_H, attention_norm, qkv, out, mlp_norm, gate_up, down)


def _norm(norm: RMSNorm | None) -> tuple[torch.Tensor, float] | None:
    if norm is None or norm.weight.dtype != torch.float32:
        return None
    return norm.weight.contiguous(), norm.eps


def _few(linear: Linear) -> FewRowsProduct | None:
    """The whole of a layer's product, if it is one."""
    plain = linear.bias is None and linear.terms is None and linear.join.size == 1
    product = linear.product
    return product.few if plain and isinstance(product, PackedProduct) else None
