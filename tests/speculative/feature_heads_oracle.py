"""Medusa and Hydra heads in numpy fp64, and their files in every published layout.

Written from arXiv 2401.10774 and 2402.05109; shares no code with the drafters.
"""

import json
import math

import numpy as np
import torch
from safetensors.torch import save_file

HIDDEN, VOCAB = 32, 64


def silu(x):
    return x / (1 + np.exp(-x))


def draw(seed, **shapes):
    """Random arrays by name; matrices keep the size of what they multiply."""
    rng = np.random.default_rng(seed)
    return {
        name: rng.normal(size=shape) * (1.4 / math.sqrt(shape[-1]) if len(shape) == 2 else 0.5)
        for name, shape in shapes.items()
    }


class MedusaOracle:
    """Heads of `blocks` blocks each: parts[k] has w0, b0, w1, ... and out."""

    def __init__(self, heads=3, blocks=1, seed=0, biased=True, tokens=VOCAB):
        self.parts = []
        for k in range(heads):
            shapes = {"out": (tokens, HIDDEN)}
            for j in range(blocks):
                shapes[f"w{j}"] = (HIDDEN, HIDDEN)
                if biased:
                    shapes[f"b{j}"] = (HIDDEN,)
            self.parts.append(draw(seed + k, **shapes))
        self.blocks = blocks

    def logits(self, feature, path, _embedding):
        """Of the token after `path` (drafted tokens, the anchor first)."""
        part, x = self.parts[len(path) - 1], feature
        for j in range(self.blocks):
            x = x + silu(part[f"w{j}"] @ x + part.get(f"b{j}", 0.0))
        return part["out"] @ x

    def tensors(self, layout):
        """By the names of a layout: repository, legacy, vllm or shared."""
        block, bias, out = {
            "repository": (
                "medusa_head.{k}.{j}.linear.weight",
                "medusa_head.{k}.{j}.linear.bias",
                "medusa_head.{k}.{L}.weight",
            ),
            "legacy": ("{k}.{j}.linear.weight", "{k}.{j}.linear.bias", "{k}.{L}.weight"),
            "vllm": (
                "blocks.{k}.layers.{j}.weight",
                "blocks.{k}.layers.{j}.bias",
                "lm_heads.{k}.weight",
            ),
        }[layout]
        found = {}
        for k, part in enumerate(self.parts):
            found[out.format(k=k, L=self.blocks)] = part["out"]
            for j in range(self.blocks):
                found[block.format(k=k, j=j)] = part[f"w{j}"]
                if f"b{j}" in part:
                    found[bias.format(k=k, j=j)] = part[f"b{j}"]
        return found


class HydraOracle:
    """Grounded heads of `blocks` blocks, or (not grounded) ones that read the feature alone."""

    def __init__(self, heads=3, blocks=2, seed=0, grounded=True, tokens=VOCAB):
        self.parts, self.grounded, self.blocks = [], grounded, blocks
        for k in range(heads):
            width = HIDDEN * (k + 2 if grounded else 1)
            shapes = {"out": (tokens, HIDDEN), "out_b": (tokens,)}
            shapes |= {"w0": (HIDDEN, width), "b0": (HIDDEN,)}
            if grounded:
                shapes |= {"r": (HIDDEN, width), "rb": (HIDDEN,)}
            for j in range(1, blocks):
                shapes |= {f"w{j}": (HIDDEN, HIDDEN), f"b{j}": (HIDDEN,)}
            self.parts.append(draw(seed + k, **shapes))

    def logits(self, feature, path, embedding):
        part = self.parts[len(path) - 1]
        x = np.concatenate([feature, *(embedding[t] for t in path)]) if self.grounded else feature
        kept = part["r"] @ x + part["rb"] if self.grounded else x
        x = kept + silu(part["w0"] @ x + part["b0"])
        for j in range(1, self.blocks):
            x = x + silu(part[f"w{j}"] @ x + part[f"b{j}"])
        return part["out"] @ x + part["out_b"]

    def tensors(self):
        names = {"w": "linear.weight", "b": "linear.bias"}
        found = {}
        for k, part in enumerate(self.parts):
            found[f"hydra_lm_head.{k}.weight"] = part["out"]
            found[f"hydra_lm_head.{k}.bias"] = part["out_b"]
            if self.grounded:
                found[f"hydra_mlp.{k}.0.res_connection.weight"] = part["r"]
                found[f"hydra_mlp.{k}.0.res_connection.bias"] = part["rb"]
            for j in range(self.blocks):
                for short, name in names.items():
                    found[f"hydra_mlp.{k}.{j}.{name}"] = part[f"{short}{j}"]
        return found


def expand(oracle, feature, anchor, embedding, paths, ids=None):
    """Tokens and chances of a tree's nodes, by path of ranks; `ids`: token of each logit."""
    tokens, chances = {}, {}
    for path in sorted(paths, key=len):
        drafted = [anchor, *(tokens[path[:depth]] for depth in range(1, len(path)))]
        logits = oracle.logits(feature, drafted, embedding)
        law = np.exp(logits - logits.max())
        law /= law.sum()
        best = int(np.argsort(-logits, kind="stable")[path[-1]])
        tokens[path], chances[path] = int(best if ids is None else ids[best]), law[best]
    return tokens, chances


def write(directory, tensors, **config):
    """Files of a head; whole numbers stay whole."""
    directory.mkdir(parents=True, exist_ok=True)
    stored = {name: torch.from_numpy(np.ascontiguousarray(x)) for name, x in tensors.items()}
    save_file(stored, directory / "model.safetensors")
    (directory / "config.json").write_text(json.dumps(config))
    return directory
