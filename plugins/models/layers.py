"""The parts that decoders are made of, and the loader that fills them from named tensors.

Each part knows which share of its parameters this rank holds and where results are joined; with
one rank a share is everything. Legend: T tokens, E hidden size, F size inside an MLP.
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from interlock.core.parallel import ALONE, Placement, Ranks
from interlock.core.weights import WeightSource
from interlock.plugins.models.lora import Lora, LowRank, Terms
from interlock.plugins.models.native.rows import native_rows
from interlock.plugins.models.norms import RMSNorm, SplitRMSNorm
from interlock.plugins.models.products import Product, make_product
from interlock.plugins.models.quantised import QUANTISED
from interlock.plugins.models.row_tiles import FAST, TILED, Rows, swiglu

Gating = Callable[[Tensor, Tensor], Tensor]
"""(gate, up) -> what the down projection reads, all [..., F]."""


class Share(NamedTuple):
    """A rank's part of an axis of `total` entries: start .. stop."""

    total: int
    start: int
    stop: int

    @property
    def size(self) -> int:
        """Entries in it."""
        return self.stop - self.start

    @property
    def slice(self) -> slice:
        """The same, for indexing."""
        return slice(self.start, self.stop)

    def times(self, count: int) -> "Share":
        """The share of an axis with `count` entries for each of this one's."""
        return Share(self.total * count, self.start * count, self.stop * count)


def whole(total: int) -> Share:
    """Everything."""
    return Share(total, 0, total)


class Linear:
    """x @ weight.T + bias; weight is [outputs, inputs].

    With `join`, inputs are a rank's share and the ranks' products are summed. `terms` are what
    the tokens' adapters add. `bias` is added after both; one that the product adds is not here.
    """

    def __init__(
        self, product: Product, bias: Tensor | None = None, join: Ranks = ALONE,
        terms: Terms | None = None, rows: Rows = FAST,
    ) -> None:  # fmt: skip
        self.product = product
        self.bias = bias
        self.join = join
        self.terms = terms
        self.rows = rows

    def __call__(self, x_TE: Tensor) -> Tensor:
        """[T, inputs] -> [T, outputs]."""
        y_TF = self.product(x_TE)
        if self.terms is not None:
            self.terms.add(x_TE, y_TF, self.rows)
        y_TF = self.join.sum(y_TF)
        return y_TF if self.bias is None else y_TF + self.bias


class Loader:
    """Takes parameters in the model's dtype; norms and routers in `wide` (at least fp32)."""

    def __init__(self, weights: WeightSource, placement: Placement) -> None:
        self.weights = weights
        self.dtype = placement.dtype
        self.device = placement.device
        self.ranks = placement.ranks
        fast = placement.numerics == FAST.numerics
        self.rows = native_rows(placement.dtype, placement.device) if fast else TILED
        self.lora = Lora(placement.adapters)
        self.wide = torch.promote_types(placement.dtype, torch.float32)
        self.bits = placement.weights
        self._squares: dict[str, tuple[float, float]] = {}

    def share(self, total: int) -> Share:
        """This rank's part of `total`, which the ranks divide evenly."""
        each, rest = divmod(total, self.ranks.size)
        assert rest == 0, f"{total} is not a multiple of {self.ranks.size} ranks"
        return Share(total, self.ranks.rank * each, (self.ranks.rank + 1) * each)

    def kv_share(self, heads: int) -> Share:
        """This rank's key/value heads: its part, or a copy of one where there are more ranks."""
        if heads >= self.ranks.size:
            return self.share(heads)
        head = self.ranks.rank * heads // self.ranks.size
        return Share(heads, head, head + 1)

    def leave(self, pattern: str) -> None:
        """Tensors of this shell pattern belong to other ranks."""
        self.weights.leave(pattern)
        self.lora.leave(pattern)

    def norm(self, prefix: str, size: int, eps: float, offset: float = 0.0) -> RMSNorm:
        """The norm whose weight is `prefix`.weight + `offset`."""
        weight = self.wide_tensor(f"{prefix}.weight", (size,))
        return RMSNorm(weight + offset if offset else weight, eps, self.rows)

    def split_norm(self, prefix: str, share: Share, eps: float) -> RMSNorm | SplitRMSNorm:
        """The norm over an axis of which this rank has a share."""
        weight = self.wide_tensor(f"{prefix}.weight", (share.total,), (share.slice,))
        if share.size == share.total:
            return RMSNorm(weight, eps, self.rows)
        copies = share.size * self.ranks.size // share.total
        return SplitRMSNorm(weight, eps, share.total, copies, self.ranks)

    def wide_tensor(
        self, name: str, shape: tuple[int, ...], part: tuple[slice, ...] = ()
    ) -> Tensor:
        """A tensor, or part of it, in at least fp32."""
        return self.weights.take(name, shape, self.wide, self.device, part)

    def tensor(self, name: str, shape: tuple[int, ...], part: tuple[slice, ...] = ()) -> Tensor:
        """A tensor, or part of it, in the model's dtype."""
        return self.weights.take(name, shape, self.dtype, self.device, part)

    def vocabulary(self, name: str, size: int, columns: int) -> Tensor:
        """This rank's rows of a [size, columns] table; stored rows beyond `size` are padding.

        Ranks have ceil(size / ranks) rows each, the last ones fewer.
        """
        stored = self.weights.shape(name)
        padded = stored is not None and len(stored) == 2 and stored[0] > size
        rows = stored[0] if stored and padded else size
        each = -(-size // self.ranks.size)
        start = min(size, each * self.ranks.rank)
        return self.tensor(name, (rows, columns), (slice(start, min(size, start + each)),))

    def linear(
        self, outputs: Mapping[str, Share], inputs: Share, biased: bool, joined: bool = True,
        order: Tensor | None = None,
    ) -> Linear:  # fmt: skip
        """One layer from those named, stacked in order: prefix -> this rank's outputs.

        Where `inputs` is a share, products are summed over ranks (not `joined`: by the caller,
        who must then have no bias). A bias that is stored is used even if the config does not
        speak of one; `biased` makes it required. `order` permutes the stacked outputs.
        """
        weight = torch.cat(
            [
                self.tensor(
                    f"{name}.weight", (rows.total, inputs.total), (rows.slice, inputs.slice)
                )
                for name, rows in outputs.items()
            ]
        )
        join = self.ranks if joined and inputs.size < inputs.total else ALONE
        terms = self._terms(outputs, inputs)
        bias = self.bias(outputs, biased)
        if bias is not None and not joined and self.ranks.rank > 0:
            bias = torch.zeros_like(bias)  # the caller's sum has it once
        if order is not None:
            weight, bias = weight[order], None if bias is None else bias[order]
            if terms is not None:
                terms.reorder(order)
        kind = "+".join(name.rpartition(".")[2] for name in outputs)
        split = inputs.size < inputs.total
        if join.size == 1 and terms is None:
            return Linear(self.product(weight, bias, kind, split), rows=self.rows)
        return Linear(self.product(weight, None, kind, split), bias, join, terms, self.rows)

    def product(
        self, weight_FE: Tensor, bias_F: Tensor | None, kind: str, split: bool = False
    ) -> Product:
        """The product with a layer's matrix, which is then the product's own; quantised as asked.

        `kind` is the name under which its rounding errors are summed up. `split`: the other ranks
        have the other inputs, and call this as well.
        """
        if self.bits not in QUANTISED:
            return make_product(weight_FE, bias_F, self.rows)
        ranks = self.ranks if split else ALONE
        product = QUANTISED[self.bits](weight_FE, bias_F, self.rows, ranks)
        self.weights.given_bytes += product.nbytes - weight_FE.nbytes
        error, weight = self._squares.get(kind, (0.0, 0.0))
        self._squares[kind] = error + product.squared_error, weight + product.squared_weight
        return product

    @property
    def weight_errors(self) -> dict[str, float]:
        """rms of what quantisation changed, relative to the rms weight, by kind of matrix."""
        return {
            kind: (error / weight) ** 0.5 if weight else 0.0
            for kind, (error, weight) in self._squares.items()
        }

    def bias(self, outputs: Mapping[str, Share], biased: bool) -> Tensor | None:
        """The stacked biases, zeros for layers without one; None if all are."""
        named = {name: biased or self.weights.has(f"{name}.bias") for name in outputs}
        if not any(named.values()):
            return None
        return torch.cat(
            [
                self.tensor(f"{name}.bias", (rows.total,), (rows.slice,))
                if named[name]
                else torch.zeros(rows.size, dtype=self.dtype, device=self.device)
                for name, rows in outputs.items()
            ]
        )

    def _terms(self, outputs: Mapping[str, Share], inputs: Share) -> Terms | None:
        found: dict[int, list[LowRank]] = {}
        for number, file in enumerate(self.lora.files):
            first = 0
            for name, rows in outputs.items():
                place = slice(first, first + rows.size)
                first += rows.size
                term = file.term(
                    name, (rows.total, rows.slice), (inputs.total, inputs.slice), place,
                    self.dtype, self.device,
                )  # fmt: skip
                if term is not None:
                    found.setdefault(number, []).append(term)
        return Terms(self.lora.adapters, found) if found else None

    def gated_mlp(
        self, prefix: str, hidden: int, inner: Share, biased: bool = False,
        gating: Gating = swiglu, joined: bool = True,
        names: tuple[str, str, str] = ("gate_proj", "up_proj", "down_proj"),
    ) -> "GatedMLP":  # fmt: skip
        """The MLP under `prefix`; `names` are those of gate, up and down.

        Not `joined`: each rank's result is a term of the sum that the caller forms over ranks.
        """
        gate, up, down = (f"{prefix}.{name}" for name in names)
        gate_up = self.linear({gate: inner, up: inner}, whole(hidden), biased)
        return GatedMLP(gate_up, self.linear({down: whole(hidden)}, inner, biased, joined), gating)


class GatedMLP:
    """down(gating(gate(x), up(x))); gate and up are one matrix, gate's rows first."""

    def __init__(self, gate_up: Linear, down: Linear, gating: Gating) -> None:
        self.gate_up = gate_up
        self.down = down
        self.gating = gating

    def __call__(self, x_TE: Tensor) -> Tensor:
        """[T, E] -> [T, E]."""
        gate_up_TX = self.gate_up(x_TE)
        if self.gating is swiglu:
            return self.down(self.down.rows.swiglu(gate_up_TX))
        return self.down(self.down.rows.apply(self.gating, *gate_up_TX.chunk(2, dim=-1)))
