"""The networks of Hydra heads: Medusa's, which also read the tokens drafted so far.

    head k:  lm_head_k(block_L(.. first_k(cat[f, emb(t), emb(x_1) .. emb(x_k)])))
    first_k(z) = R z + r + silu(W z + b)           block(x) = x + silu(W x + b)

arXiv 2402.05109, section 3, with the names of zankner/Hydra's MLP heads. f is the final-norm
feature of the position before the anchor t; head k gives the law of the token k + 1 places after
the anchor, given the drafts x_1 .. x_k. Heads that are not grounded read f alone, as Medusa's do.
Legend: E hidden size, I inputs of a head, V vocabulary, R rows.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from interlock.core.drafter import DraftContext
from interlock.core.errors import CheckpointError
from interlock.core.model import ModelDescription
from interlock.core.weights import WeightSource
from interlock.plugins.speculative.heads.medusa_network import check_sizes, silu

PREFIX = "prefix_embeding_layer."  # spelt so in checkpoints


class Affine:
    """W x + b of a stored linear layer whose bias may be missing."""

    def __init__(
        self,
        weights: WeightSource,
        name: str,
        shape: tuple[int, int],
        dtype: torch.dtype,
        device: torch.device,
        stored_rows: int | None = None,
    ) -> None:
        """`shape` of what is kept: the first rows of `stored_rows`."""
        rows, width = stored_rows or shape[0], shape[1]
        part = (slice(shape[0]),)
        self.weight = weights.take(f"{name}.weight", (rows, width), dtype, device, part)
        biased = weights.has(f"{name}.bias")
        self.bias = weights.take(f"{name}.bias", (rows,), dtype, device, part) if biased else None

    def __call__(self, x: Tensor) -> Tensor:
        """The product, plus the bias."""
        return F.linear(x, self.weight, self.bias)


class HydraNetwork:
    """All heads; every tensor of `weights` is taken once, and mistakes are one CheckpointError.

    How many heads and blocks there are, and whether heads are grounded, follows from what is
    stored.
    """

    token_ids_V: Tensor | None = None

    def __init__(
        self,
        config: Mapping[str, Any],
        model: ModelDescription,
        weights: WeightSource,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        names, hidden = weights.names(), model.hidden_size
        check_sizes(config, model, weights.title)
        _refuse_others(names, weights.title)
        self.dtype, self.vocab_size = dtype, model.vocab_size
        first = weights.shape("hydra_mlp.0.0.linear.weight") or (0, 0)
        self.reads_tokens = first != (hidden, hidden)
        self.first: list[tuple[Affine, Affine | None]] = []
        self.blocks: list[list[Affine]] = []
        self.outputs: list[Affine] = []

        def affine(name: str, *shape: int) -> Affine:
            return Affine(weights, name, (shape[0], shape[1]), dtype, device)

        while f"hydra_mlp.{len(self.first)}.0.linear.weight" in names:
            k = len(self.first)
            width = hidden * (k + 2) if self.reads_tokens else hidden
            name = f"hydra_mlp.{k}.0"
            residual = None
            if self.reads_tokens:
                residual = affine(f"{name}.res_connection", hidden, width)
            self.first.append((affine(f"{name}.linear", hidden, width), residual))
            blocks = list[Affine]()
            while f"hydra_mlp.{k}.{len(blocks) + 1}.linear.weight" in names:
                blocks.append(affine(f"hydra_mlp.{k}.{len(blocks) + 1}.linear", hidden, hidden))
            self.blocks.append(blocks)
            output = f"hydra_lm_head.{k}"
            stored = weights.shape(f"{output}.weight")
            rows = max(stored[0], model.vocab_size) if stored else None
            shape = (model.vocab_size, hidden)
            self.outputs.append(Affine(weights, output, shape, dtype, device, rows))
        self.count = len(self.first)
        weights.finish()

    def start(self, features_RE: Tensor, embedded_RE: Tensor) -> Tensor:
        """What head 0 reads: the feature, and the anchor's embedding."""
        features_RE = features_RE.to(self.dtype)
        return self.extend(features_RE, embedded_RE) if self.reads_tokens else features_RE

    def extend(self, inputs_RI: Tensor, embedded_RE: Tensor) -> Tensor:
        """What the next head reads: one more embedding at the end."""
        if not self.reads_tokens:
            return inputs_RI
        return torch.cat([inputs_RI, embedded_RE.to(self.dtype)], dim=-1)

    def logits(self, head: int, inputs_RI: Tensor, _context: DraftContext) -> Tensor:
        """[R, V] of one head."""
        gate, residual = self.first[head]
        x_RE = (inputs_RI if residual is None else residual(inputs_RI)) + silu(gate(inputs_RI))
        for block in self.blocks[head]:
            x_RE = x_RE + silu(block(x_RE))
        return self.outputs[head](x_RE)


def _refuse_others(names: frozenset[str], title: str) -> None:
    """CheckpointError for Hydra's other networks, and for what is none."""
    if any(name.startswith(PREFIX) for name in names):
        raise CheckpointError(
            f"{title}: hydra_head_arch=prefix-mlp (a decoder layer before the heads) is not read, "
            "only mlp"
        )
    if "hydra_mlp.0.0.linear.weight" not in names:
        stored = ", ".join(sorted(names)[:4]) or "nothing"
        raise CheckpointError(
            f"{title}: no Hydra head: hydra_mlp.0.0.linear.weight is not stored; {stored} is"
        )
