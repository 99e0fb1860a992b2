"""Dense block drafters in numpy fp64, one query at a time, and their files in every layout.

Written from arXiv 2602.06036 and 2607.05147; shares no code with the drafters.
"""

import json
import math

import numpy as np
import torch
from safetensors.torch import save_file

SIZES = {
    "model_type": "qwen3",
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "vocab_size": 64,
    "hidden_act": "silu",
    "attention_bias": False,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "max_position_embeddings": 512,
}
MASK, SLOTS, RANK = 63, 5, 6
TAPS = (0,)


def block_tensors(seed=0, taps=1, own=False, markov=None, confidence=None, ids=64, vocab=64):
    """Random tensors by checkpoint name, fp64. `markov`: vanilla, gated, rnn; `confidence`: "row",
    or "both" for the token before as well; `own`: with embedding and output matrix."""
    draw, hidden = np.random.default_rng(seed), SIZES["hidden_size"]
    shapes = {"fc": (hidden, taps * hidden), "hidden_norm": (hidden,), "norm": (hidden,)}
    for layer in range(SIZES["num_hidden_layers"]):
        shapes |= layer_shapes(f"layers.{layer}.")
    ids = min(ids, vocab)
    if own or ids != vocab:
        shapes["lm_head"] = (ids, hidden)
    if own:
        shapes["embed_tokens"] = (vocab, hidden)
    shapes |= light_shapes(markov, confidence, ids, vocab)
    tensors = {}
    for name, shape in shapes.items():
        scale = 1.4 / math.sqrt(shape[-1]) if len(shape) == 2 else 0.1
        if name in ("embed_tokens", "markov_head.markov_w1", "markov_head.markov_w2"):
            scale = 1.0
        tensors[f"{name}.weight"] = draw.normal(size=shape) * scale + (len(shape) == 1)
        if name.startswith(("markov_head", "confidence_head")) and name.endswith("proj"):
            tensors[f"{name}.bias"] = draw.normal(size=shape[:1])
    if ids != vocab:
        tensors["d2t"] = 2 * np.arange(ids) - np.arange(ids)  # id i is the target's 2 i
        tensors["t2d"] = np.arange(64) % 2 == 0
    return tensors


def layer_shapes(under):
    """Of one layer, by name."""
    hidden, inner = SIZES["hidden_size"], SIZES["intermediate_size"]
    width = SIZES["num_attention_heads"] * SIZES["head_dim"]
    kv_width = SIZES["num_key_value_heads"] * SIZES["head_dim"]
    return {
        f"{under}input_layernorm": (hidden,),
        f"{under}post_attention_layernorm": (hidden,),
        f"{under}self_attn.q_proj": (width, hidden),
        f"{under}self_attn.k_proj": (kv_width, hidden),
        f"{under}self_attn.v_proj": (kv_width, hidden),
        f"{under}self_attn.o_proj": (hidden, width),
        f"{under}self_attn.q_norm": (SIZES["head_dim"],),
        f"{under}self_attn.k_norm": (SIZES["head_dim"],),
        f"{under}mlp.gate_proj": (inner, hidden),
        f"{under}mlp.up_proj": (inner, hidden),
        f"{under}mlp.down_proj": (hidden, inner),
    }


def light_shapes(markov, confidence, ids, vocab):
    """Of the Markov and the confidence head, by name."""
    hidden, shapes = SIZES["hidden_size"], {}
    if markov:
        shapes |= {"markov_head.markov_w1": (vocab, RANK), "markov_head.markov_w2": (ids, RANK)}
    if markov == "gated":
        shapes["markov_head.gate_proj"] = (RANK, hidden + RANK)
    if markov == "rnn":
        shapes["markov_head.joint_proj"] = (3 * RANK, 2 * RANK + hidden)
    if confidence:
        shapes["confidence_head.proj"] = (1, hidden + RANK * (confidence == "both"))
    return shapes


def block_config(taps=TAPS, **changes):
    """Flat fields, as z-lab and DeepSpec write them."""
    return {
        **SIZES, "block_size": SLOTS, "mask_token_id": MASK, "target_layer_ids": list(taps),
        **changes,
    }  # fmt: skip


def write_block_head(directory, tensors, config):
    """config.json and model.safetensors."""
    directory.mkdir(parents=True, exist_ok=True)
    save_file({n: torch.from_numpy(t) for n, t in tensors.items()}, directory / "model.safetensors")
    (directory / "config.json").write_text(json.dumps(config))
    return directory


def block_rows(tensors, embedding, taps, anchor):
    """(rows, keys, values): normed rows [slots, E] of the block after `anchor`, and rotated keys
    and values [layers][n] of the committed positions, given their taps [n, X E]."""
    w = {name.removesuffix(".weight"): value for name, value in tensors.items()}
    embedding = w.get("embed_tokens", embedding)
    context = [norm(w["fc"] @ row, w["hidden_norm"]) for row in taps]
    x = [embedding[anchor], *[embedding[MASK]] * (SLOTS - 1)]
    n, all_keys, all_values = len(context), [], []
    for layer in range(SIZES["num_hidden_layers"]):
        at = f"layers.{layer}.self_attn."
        normed = [norm(row, w[f"layers.{layer}.input_layernorm"]) for row in x]
        keys = [
            [turn(norm(head, w[f"{at}k_norm"]), place) for head in heads(w[f"{at}k_proj"] @ row)]
            for place, row in enumerate([*context, *normed])
        ]
        values = [heads(w[f"{at}v_proj"] @ row) for row in [*context, *normed]]
        all_keys.append(np.array(keys[:n]))
        all_values.append(np.array(values[:n]))
        after = []
        for slot, row in enumerate(normed):
            out = []
            for number, head in enumerate(heads(w[f"{at}q_proj"] @ row)):
                query = turn(norm(head, w[f"{at}q_norm"]), n + slot)
                scores = np.array([k[number // 2] @ query for k in keys]) / math.sqrt(len(query))
                weights = np.exp(scores - scores.max())
                weights = weights / weights.sum()
                out.append(sum(p * v[number // 2] for p, v in zip(weights, values, strict=True)))
            y = x[slot] + w[f"{at}o_proj"] @ np.concatenate(out)
            z = norm(y, w[f"layers.{layer}.post_attention_layernorm"])
            gate = w[f"layers.{layer}.mlp.gate_proj"] @ z
            inner = gate * sigmoid(gate) * (w[f"layers.{layer}.mlp.up_proj"] @ z)
            after.append(y + w[f"layers.{layer}.mlp.down_proj"] @ inner)
        x = after
    return np.array([norm(row, w["norm"]) for row in x]), all_keys, all_values


def left_to_right(tensors, head, rows, anchor, count, markov, first=0):
    """(tokens, laws, confidence) of `count` greedy candidates after the anchor; `head` [V, E] is
    the target's, used where the head has none. `first` is the slot of the first candidate."""
    w = {name.removesuffix(".weight"): value for name, value in tensors.items()}
    head = w.get("lm_head", head)
    tokens, laws, chances, before, state = [], [], [], anchor, np.zeros(RANK)
    for slot in range(first, first + count):
        out, logits = rows[slot], head @ rows[slot]
        token = w["markov_head.markov_w1"][before] if markov else np.zeros(0)
        latent = token
        if markov == "gated":
            inner = w["markov_head.gate_proj"] @ np.concatenate([out, token])
            latent = token * sigmoid(inner + w["markov_head.gate_proj.bias"])
        if markov == "rnn":
            joint = w["markov_head.joint_proj"] @ np.concatenate([state, token, out])
            g, c, o = np.split(joint + w["markov_head.joint_proj.bias"], 3)
            state = sigmoid(g) * state + (1 - sigmoid(g)) * np.tanh(c)
            latent = np.tanh(o)
        if markov:
            logits = logits + w["markov_head.markov_w2"] @ latent
        law = np.exp(logits - logits.max())
        law /= law.sum()
        chance = law.max()
        if "confidence_head.proj" in w:
            read = np.concatenate([out, token])[: w["confidence_head.proj"].shape[1]]
            chance = sigmoid(w["confidence_head.proj"] @ read + w["confidence_head.proj.bias"])[0]
        before = int(law.argmax())
        if "d2t" in w:
            spread = np.zeros(64)
            spread[np.arange(len(law)) + w["d2t"]] = law
            before += int(w["d2t"][before])
            law = spread
        tokens.append(before)
        laws.append(law)
        chances.append(chance)
    return tokens, np.array(laws), chances


def heads(row):
    """[heads, D]."""
    return row.reshape(-1, SIZES["head_dim"])


def norm(row, weight):
    """x / rms(x) * weight."""
    return row / np.sqrt((row**2).mean() + SIZES["rms_norm_eps"]) * weight


def sigmoid(x):
    """1 / (1 + e^-x)."""
    return 1 / (1 + np.exp(-x))


def turn(head, position):
    """Rotary embedding: pairs (i, i + half) turn by position * theta^(-2i / size)."""
    half = len(head) // 2
    angles = position * SIZES["rope_theta"] ** (-2 * np.arange(half) / len(head))
    cos, sin, a, b = np.cos(angles), np.sin(angles), head[:half], head[half:]
    return np.concatenate([a * cos - b * sin, b * cos + a * sin])
