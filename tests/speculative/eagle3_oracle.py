"""A dense EAGLE-3 head, one query at a time, in plain torch fp64.

Written from arXiv 2503.01840, section 3.1, and the Llama layer's definition.
"""

import math

import torch


def carried(w, taps, **stated):
    """The first half of each committed row, from its taps (a list of [E] by layer)."""
    if stated.get("fc_norm"):
        taps = [norm(tap, w[f"fc_norm.{n}.weight"]) for n, tap in enumerate(taps)]
    fused = torch.cat(taps)
    if stated.get("norm_before_fc"):
        fused = norm(fused, w["input_norm.weight"])
    return w["fc.weight"] @ fused


def last_output(w, embedded, firsts, heads=4, kv_heads=2, **stated):
    """What the last of these rows hands on: row i pairs firsts[i] with embedded[i]."""
    rows = []
    for e, g in zip(embedded, firsts, strict=True):
        pair = (
            norm(e, w["midlayer.input_layernorm.weight"]),
            norm(g, w["midlayer.hidden_norm.weight"]),
        )
        rows.append(torch.cat(pair))
    q = turned((w["midlayer.self_attn.q_proj.weight"] @ rows[-1]).view(heads, -1), len(rows) - 1)
    scores, values = [], []
    for i, row in enumerate(rows):
        k = turned((w["midlayer.self_attn.k_proj.weight"] @ row).view(kv_heads, -1), i)
        v = (w["midlayer.self_attn.v_proj.weight"] @ row).view(kv_heads, -1)
        group = heads // kv_heads
        scores.append([q[h] @ k[h // group] / math.sqrt(q.shape[1]) for h in range(heads)])
        values.append(torch.stack([v[h // group] for h in range(heads)]))
    weights = torch.tensor(scores, dtype=torch.float64).softmax(0)
    attended = sum(weights[i][:, None] * value for i, value in enumerate(values))
    normed = norm(firsts[-1], w["midlayer.hidden_norm.weight"])
    x = normed if stated.get("norm_before_residual") else firsts[-1]
    x = x + w["midlayer.self_attn.o_proj.weight"] @ attended.flatten()
    y = norm(x, w["midlayer.post_attention_layernorm.weight"])
    gate = w["midlayer.mlp.gate_proj.weight"] @ y
    inner = gate * torch.sigmoid(gate) * (w["midlayer.mlp.up_proj.weight"] @ y)
    x = x + w["midlayer.mlp.down_proj.weight"] @ inner
    return norm(x, w["norm.weight"]) if stated.get("norm_output") else x


def law(w, handed, vocab_size, **stated):
    """Probabilities over the target's tokens."""
    normed = handed if stated.get("norm_output") else norm(handed, w["norm.weight"])
    drafted = (w["lm_head.weight"] @ normed).softmax(0)
    if "d2t" not in w:
        return drafted
    full = torch.zeros(vocab_size, dtype=torch.float64)
    for i, p in enumerate(drafted):
        full[i + int(w["d2t"][i])] = p
    return full


def norm(x, weight, eps=1e-5):
    return x / torch.sqrt((x * x).mean() + eps) * weight


def turned(heads_HD, position):
    half = heads_HD.shape[1] // 2
    turned_HD = heads_HD.clone()
    for i in range(half):
        angle = position * 10000.0 ** (-i / half)
        a, b = heads_HD[:, i], heads_HD[:, i + half]
        turned_HD[:, i] = a * math.cos(angle) - b * math.sin(angle)
        turned_HD[:, i + half] = b * math.cos(angle) + a * math.sin(angle)
    return turned_HD
