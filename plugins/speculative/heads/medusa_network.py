"""The networks of Medusa heads and how checkpoints name their tensors.

    head k:  lm_head_k(block_L(.. block_1(f)))     block(x) = x + silu(W x + b)

arXiv 2401.10774, section 2.1.1. Head k reads the final-norm feature of the position before the
anchor, whose own head gave the anchor, and gives the law of the token k + 1 places after it.
Legend: E hidden size, V rows of a head's output matrix, R rows.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from interlock.core.component import BuildContext
from interlock.core.drafter import DraftContext
from interlock.core.errors import CheckpointError
from interlock.core.model import ModelDescription
from interlock.core.operations import Product
from interlock.core.weights import WeightSource
from interlock.plugins.speculative.heads.layer import Taker


@dataclass(frozen=True)
class Layout:
    """One published way to name the tensors, as formats of head k and block j.

    `block` names what ".weight" and ".bias" follow; `output` the output matrix of a head with
    `j` blocks. `shared` names one output matrix of all heads, where the layout knows it.
    """

    block: str
    output: str
    shared: str | None = None


REPOSITORY = Layout("medusa_head.{k}.{j}.linear", "medusa_head.{k}.{j}.weight")
LEGACY = Layout("{k}.{j}.linear", "{k}.{j}.weight")
VLLM = Layout("blocks.{k}.layers.{j}", "lm_heads.{k}.weight", "lm_head.weight")
PREFIXED_VLLM = Layout(
    "medusa_heads.blocks.{k}.layers.{j}",
    "medusa_heads.lm_heads.{k}.weight",
    "medusa_heads.lm_head.weight",
)
LAYOUTS = (REPOSITORY, LEGACY, VLLM, PREFIXED_VLLM)
TOKEN_MAPS = ("token_map", "medusa_heads.token_map")


class ResBlock:
    """x + silu(W x + b)."""

    def __init__(self, product: Product) -> None:
        self._product = product

    def __call__(self, x_RE: Tensor) -> Tensor:
        """[R, E]; the gate keeps at least fp32."""
        return x_RE + silu(self._product(x_RE))


class MedusaNetwork:
    """All heads; every tensor of `weights` is taken once, and mistakes are one CheckpointError.

    There are as many heads as are stored, whatever the config says (uploaded ones say 2 beside 5).
    `original_lm_head` in the config: all heads share one output matrix, stored once or, where it is
    not stored, the target's.
    """

    reads_tokens = False

    def __init__(
        self,
        config: Mapping[str, Any],
        weights: WeightSource,
        context: BuildContext,
    ) -> None:
        names, model = weights.names(), context.model
        hidden = self._hidden = model.hidden_size
        layout = find_layout(names, weights.title)
        check_sizes(config, model, weights.title)
        self._source = Taker(weights, context)
        self.dtype, self.vocab_size = self._source.dtype, model.vocab_size
        self.token_ids_V = self._token_map(names)
        """Which token each row of an output matrix is for; None: row i is token i."""
        self.blocks: list[list[ResBlock]] = []
        outputs: list[str] = []
        while layout.block.format(k=len(self.blocks), j=0) + ".weight" in names:
            k = len(self.blocks)
            blocks = list[ResBlock]()
            while (name := layout.block.format(k=k, j=len(blocks))) + ".weight" in names:
                blocks.append(ResBlock(self._source.product(hidden, {name: hidden})))
            self.blocks.append(blocks)
            outputs.append(layout.output.format(k=k, j=len(blocks)))
        self.count = len(self.blocks)
        self.outputs: list[Product] | None
        """A matrix [V, E] for each head; None: the target's own head."""
        if layout.shared is not None and config.get("original_lm_head"):
            stored = next((name for name in (layout.shared, outputs[0]) if name in names), None)
            self.outputs = None if stored is None else [self._output(stored)] * self.count
        else:
            self.outputs = [self._output(name) for name in outputs]
        weights.finish()

    def start(self, features_RE: Tensor, _embedded_RE: Tensor) -> Tensor:
        """What head 0 reads: the feature."""
        return features_RE.to(self.dtype)

    def extend(self, inputs_RE: Tensor, _embedded_RE: Tensor) -> Tensor:
        """What the next head reads once a token is drafted: the same."""
        return inputs_RE

    def logits(self, head: int, inputs_RE: Tensor, context: DraftContext) -> Tensor:
        """[R, V] of one head, over the tokens of `token_ids_V`."""
        x_RE = inputs_RE
        for block in self.blocks[head]:
            x_RE = block(x_RE)
        if self.outputs is not None:
            return self.outputs[head](x_RE)
        logits_RV = context.decoder.logits(x_RE)
        return logits_RV if self.token_ids_V is None else logits_RV[:, self.token_ids_V]

    def _token_map(self, names: frozenset[str]) -> Tensor | None:
        weights = self._source.weights
        name = next((name for name in TOKEN_MAPS if name in names), None)
        if name is None:
            return None
        ids_V = weights.take(
            name, weights.shape(name) or (), torch.int64, self._source.device
        ).flatten()
        if not len(ids_V) or not 0 <= int(ids_V.min()) <= int(ids_V.max()) < self.vocab_size:
            raise CheckpointError(
                f"{weights.title}: {name} must name tokens from 0 to {self.vocab_size - 1}, "
                "the target's"
            )
        return ids_V

    def _output(self, name: str) -> Product:
        """Logits of the tokens of `token_ids_V`."""
        return self._source.operations.product(self._rows_of(name))

    def _rows_of(self, name: str) -> Tensor:
        """[V, E] of the tokens of `token_ids_V`; padding behind a whole vocabulary is left out."""
        stored, chosen, size = self._source.weights.shape(name), self.token_ids_V, self.vocab_size
        if chosen is not None and (stored is None or stored[0] <= len(chosen)):
            return self._take_rows(name, len(chosen), len(chosen))
        whole_VE = self._take_rows(name, size, max(size, stored[0]) if stored else size)
        return whole_VE if chosen is None else whole_VE[chosen]

    def _take_rows(self, name: str, rows: int, stored_rows: int) -> Tensor:
        shape, part = (stored_rows, self._hidden), (slice(rows),)
        return self._source.weights.take(name, shape, self.dtype, self._source.device, part)


def find_layout(names: frozenset[str], title: str) -> Layout:
    """The layout whose first block is stored; CheckpointError that lists what was looked for."""
    for layout in LAYOUTS:
        if layout.block.format(k=0, j=0) + ".weight" in names:
            return layout
    looked = ", ".join(layout.block.format(k=0, j=0) + ".weight" for layout in LAYOUTS)
    stored = ", ".join(sorted(names)[:4]) or "nothing"
    raise CheckpointError(f"{title}: no Medusa head: none of {looked} is stored; {stored} is")


def check_sizes(config: Mapping[str, Any], model: ModelDescription, title: str) -> None:
    """CheckpointError where a size that a head's config states is not the target's."""
    wanted = {"hidden_size": model.hidden_size, "vocab_size": model.vocab_size}
    wrong = [
        f"{key}={config[key]} is not the target's {value} ({model.name})"
        for key, value in wanted.items()
        if config.get(key, value) != value
    ]
    if wrong:
        raise CheckpointError(f"{title}: " + "; ".join(wrong))


def silu(x: Tensor) -> Tensor:
    """x sigmoid(x), in fp32 or wider."""
    return F.silu(x.to(torch.promote_types(x.dtype, torch.float32))).to(x.dtype)
