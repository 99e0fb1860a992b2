"""Tiny random targets, heads and windows for tests of the recipe's drafters.

Shapes: B windows, T tokens, E hidden size, X taps, V vocabulary.
"""

import torch

from interlock.models.recipe.drafters.facts import TargetFacts, Window

SIZES = {"hidden": 16, "vocab_size": 11, "layers": 6, "heads": 2, "kv_heads": 1, "head_dim": 8}
LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 11,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 6,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 8,
    "rms_norm_eps": 1e-5,
    "rope_theta": 100.0,
    "max_position_embeddings": 64,
    "attention_bias": False,
}
LATENT = {
    **{name: value for name, value in LLAMA.items() if name != "head_dim"},
    "architectures": ["DeepseekV3ForCausalLM"],
    "model_type": "deepseek_v3",
    "num_key_value_heads": 2,
    "q_lora_rank": None,
    "kv_lora_rank": 12,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 4,
    "v_head_dim": 8,
    "rope_interleave": True,
    "first_k_dense_replace": 6,
    "moe_intermediate_size": 24,
    "n_routed_experts": 2,
    "num_experts_per_tok": 1,
    "n_group": 1,
    "topk_group": 1,
}
UNUSED = 7
"""A token id that `facts` says no text holds."""


def facts(config=LLAMA):
    generator = torch.Generator().manual_seed(5)
    embed = torch.randn(11, 16, generator=generator)
    counts = torch.ones(11, dtype=torch.long)
    counts[UNUSED] = 0
    return TargetFacts(
        config=config,
        intermediate=24,
        norm_eps=1e-5,
        rope_theta=100.0,
        max_positions=64,
        embed_VE=embed,
        head_VE=torch.randn(11, 16, generator=generator),
        norm_E=torch.rand(16, generator=generator) + 0.5,
        counts_V=counts,
        **SIZES,
    )


def window(seed=0, batch=2, tokens=9, taps=3, masked=()):
    """Random features; rows named in `masked` as (window, position) do not count."""
    generator = torch.Generator().manual_seed(seed)
    draw = lambda *shape: torch.randn(*shape, generator=generator)  # noqa: E731
    mask = torch.ones(batch, tokens, dtype=torch.bool)
    for place in masked:
        mask[place] = False
    features = draw(batch, tokens, 16)
    return Window(
        ids_BT=torch.randint(11, (batch, tokens), generator=generator),
        features_BTE=features,
        hidden_BTE=3 * draw(batch, tokens, 16),
        taps_BTXE=draw(batch, tokens, taps, 16) * torch.tensor([1.0, 5.0, 9.0])[:taps, None],
        best_BT=(features @ facts().head_VE.T).argmax(-1),
        mask_BT=mask,
    )


def randomise(head, std=0.3):
    """All weights far from their starts, so that no part of a head is silent."""
    generator = torch.Generator().manual_seed(9)
    for weight in head.parameters():
        noise = torch.randn(weight.shape, generator=generator)
        weight.data = noise * std if weight.ndim == 2 else weight.data + 0.2 * noise
    return head.requires_grad_(False)


def windows_of(target, ids_BT):
    """What a six-layer recipe decoder computes over these tokens, all of which count."""
    outputs = []
    x = target.embed_tokens(ids_BT)
    for layer in target.layers:
        x = layer(x)
        outputs.append(x)
    features = target.norm(x)
    mask = torch.ones_like(ids_BT, dtype=torch.bool)
    taps = torch.stack([outputs[layer] for layer in (1, 3, 4)], dim=2)
    return Window(ids_BT, features, x, taps, target.logits(features).argmax(-1), mask)
