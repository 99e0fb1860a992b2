"""A dense EAGLE-1 head in numpy fp64, one query at a time, and a cache for a drafter under test.

Written from arXiv 2401.15077 and the Llama layer's definition; shares no code with the drafter.
"""

import math

import numpy as np
import torch

from interlock.core.drafter import DraftContext, Drawn

SIZES = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "vocab_size": 64,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "max_position_embeddings": 512,
}


def head_tensors(seed=0, bias=False, embedding=False):
    """Random tensors of a head, by checkpoint name, fp64."""
    draw = np.random.default_rng(seed)
    hidden, inner = SIZES["hidden_size"], SIZES["intermediate_size"]
    width = SIZES["num_attention_heads"] * SIZES["head_dim"]
    kv_width = SIZES["num_key_value_heads"] * SIZES["head_dim"]
    shapes = {
        "fc.weight": (hidden, 2 * hidden),
        "layers.0.self_attn.q_proj.weight": (width, hidden),
        "layers.0.self_attn.k_proj.weight": (kv_width, hidden),
        "layers.0.self_attn.v_proj.weight": (kv_width, hidden),
        "layers.0.self_attn.o_proj.weight": (hidden, width),
        "layers.0.mlp.gate_proj.weight": (inner, hidden),
        "layers.0.mlp.up_proj.weight": (inner, hidden),
        "layers.0.mlp.down_proj.weight": (hidden, inner),
    }
    tensors = {name: draw.normal(size=s) * 1.4 / math.sqrt(s[1]) for name, s in shapes.items()}
    tensors["layers.0.post_attention_layernorm.weight"] = 1 + 0.1 * draw.normal(size=hidden)
    if bias:
        tensors["fc.bias"] = draw.normal(size=hidden)
    if embedding:
        tensors["embed_tokens.weight"] = draw.normal(size=(SIZES["vocab_size"], hidden))
    return tensors


def last_estimate(tensors, embedded, features):
    """(estimate, keys, values): the output of the last row and all rows' rotated keys and values.

    Row i pairs features[i] with embedded[i], the embedding of the token at i + 1.
    """
    w = {name.removesuffix(".weight"): value for name, value in tensors.items()}
    rows = []
    for e, f in zip(embedded, features, strict=True):
        rows.append(w["fc"] @ np.concatenate([e, f]) + w.get("fc.bias", 0.0))
    q, k, v = (_heads(w[f"layers.0.self_attn.{n}_proj"], rows) for n in "qkv")
    keys = np.stack([[_turn(head, i) for head in row] for i, row in enumerate(k)])
    query = [_turn(head, len(rows) - 1) for head in q[-1]]
    shared = len(query) // keys.shape[1]
    attended = []
    for number, head in enumerate(query):
        scores = keys[:, number // shared] @ head / math.sqrt(len(head))
        weights = np.exp(scores - scores.max())
        attended.append(weights / weights.sum() @ v[:, number // shared])
    x = rows[-1] + w["layers.0.self_attn.o_proj"] @ np.concatenate(attended)
    normed = x / np.sqrt((x**2).mean() + SIZES["rms_norm_eps"])
    normed = normed * w["layers.0.post_attention_layernorm"]
    gate = w["layers.0.mlp.gate_proj"] @ normed
    inner = gate / (1 + np.exp(-gate)) * (w["layers.0.mlp.up_proj"] @ normed)
    return x + w["layers.0.mlp.down_proj"] @ inner, keys, v


def chain(tensors, embedding, head, features, next_tokens, count):
    """`count` greedy drafts: each estimate is fed back with the token drawn from it."""
    features, tokens, drafts = list(features), list(next_tokens), []
    for _ in range(count):
        estimate, _, _ = last_estimate(tensors, embedding[tokens], features)
        drafts.append(int(np.argmax(head @ estimate)))
        features.append(estimate)
        tokens.append(drafts[-1])
    return drafts


def _heads(weight, rows):
    size = SIZES["head_dim"]
    return np.stack([(weight @ row).reshape(-1, size) for row in rows])


def _turn(head, position):
    """Rotary embedding: pairs (i, i + half) turn by position * theta^(-2i / size)."""
    half = len(head) // 2
    turned = head.copy()
    for i in range(half):
        angle = position * SIZES["rope_theta"] ** (-2 * i / len(head))
        turned[i] = head[i] * math.cos(angle) - head[i + half] * math.sin(angle)
        turned[i + half] = head[i + half] * math.cos(angle) + head[i] * math.sin(angle)
    return turned


class ListCache(DraftContext):
    """Lends attention over one list of entries a request and layer, and records every pass."""

    def __init__(self, decoder, num_requests, expected_layer, num_layers=1):
        self.decoder = decoder
        self.layers = {
            expected_layer + layer: [[] for _ in range(num_requests)] for layer in range(num_layers)
        }
        self.rows = self.layers[expected_layer]
        self.passes = []

    def attend(self, requests, row_lengths, starts, positions=None, masks=None, store_only=False):
        """Entries from `starts` on are overwritten; a query sees all entries up to its own."""
        self.passes.append((tuple(requests), tuple(row_lengths), tuple(starts)))
        places = [
            (row, offset, start + offset)
            for row, (length, start) in enumerate(zip(row_lengths, starts, strict=True))
            for offset in range(length)
        ]

        def seen_by(rows, row, offset):
            entries, length = rows[: starts[row]], row_lengths[row]
            for other in range(length):
                sees = masks[row][offset, other] if row in (masks or {}) else other <= offset
                entries += [rows[starts[row] + other]] if sees else []
            return entries

        def attend(layer, spec, inputs):
            rows = self.layers[layer]
            for (row, _, entry), k, v in zip(places, inputs.k_TKD, inputs.v_TKV, strict=True):
                assert entry <= len(rows[requests[row]]), "a gap in the drafter's rows"
                rows[requests[row]][entry:] = [(k, v)]
            if store_only:
                return inputs.q_THD[:0]
            outputs = []
            for (row, offset, _), q in zip(places, inputs.q_THD, strict=True):
                seen = seen_by(rows[requests[row]], row, offset)
                shared = spec.num_heads // spec.num_kv_heads
                keys, values = (
                    torch.stack(part).repeat_interleave(shared, dim=1)
                    for part in zip(*seen, strict=True)
                )
                weights = (torch.einsum("hd,shd->hs", q, keys) * spec.scale).softmax(-1)
                outputs.append(torch.einsum("hs,shd->hd", weights, values))
            return torch.stack(outputs)

        entries = [entry for _, _, entry in places]
        return attend, torch.tensor(entries if positions is None else list(positions))

    def draw(self, logits_RV, requests, positions, nth=0):
        """The most likely token of each row, and the rows' laws at temperature 1."""
        return Drawn(logits_RV.argmax(-1), logits_RV.softmax(-1))
