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

from interlock.core.component import BuildContext
from interlock.core.drafter import DraftContext
from interlock.core.errors import CheckpointError
from interlock.core.operations import Product
from interlock.core.weights import WeightSource
from interlock.plugins.speculative.heads.layer import Taker
from interlock.plugins.speculative.heads.medusa_network import check_sizes, silu

PREFIX = "prefix_embeding_layer."  # spelt so in checkpoints


class HydraNetwork:
    """All heads; every tensor of `weights` is taken once, and mistakes are one CheckpointError.

    How many heads and blocks there are, and whether heads are grounded, follows from what is
    stored.
    """

    token_ids_V: Tensor | None = None

    def __init__(
        self,
        config: Mapping[str, Any],
        weights: WeightSource,
        context: BuildContext,
    ) -> None:
        names, model = weights.names(), context.model
        hidden, source = model.hidden_size, Taker(weights, context)
        check_sizes(config, model, weights.title)
        _refuse_others(names, weights.title)
        self.dtype, self.vocab_size = source.dtype, model.vocab_size
        first = weights.shape("hydra_mlp.0.0.linear.weight") or (0, 0)
        self.reads_tokens = first != (hidden, hidden)
        self.first: list[tuple[Product, Product | None]] = []
        self.blocks: list[list[Product]] = []
        self.outputs: list[Product] = []

        while f"hydra_mlp.{len(self.first)}.0.linear.weight" in names:
            k = len(self.first)
            width = hidden * (k + 2) if self.reads_tokens else hidden
            name = f"hydra_mlp.{k}.0"
            residual = None
            if self.reads_tokens:
                residual = source.product(width, {f"{name}.res_connection": hidden})
            self.first.append((source.product(width, {f"{name}.linear": hidden}), residual))
            blocks = list[Product]()
            while (block := f"hydra_mlp.{k}.{len(blocks) + 1}.linear") + ".weight" in names:
                blocks.append(source.product(hidden, {block: hidden}))
            self.blocks.append(blocks)
            self.outputs.append(_output(source, f"hydra_lm_head.{k}", model.vocab_size, hidden))
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


def _output(source: Taker, name: str, vocab_size: int, hidden: int) -> Product:
    """A head's logits: of what is stored, as many rows as the target has tokens."""
    stored = source.weights.shape(f"{name}.weight")
    rows, first = max(stored[0], vocab_size) if stored else vocab_size, (slice(vocab_size),)
    placed = source.dtype, source.device
    weight_VE = source.weights.take(f"{name}.weight", (rows, hidden), *placed, first)
    bias_V = None
    if source.weights.has(f"{name}.bias"):
        bias_V = source.weights.take(f"{name}.bias", (rows,), *placed, first)
    return source.operations.product(weight_VE, bias_V)


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
