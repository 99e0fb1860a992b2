"""The routed experts of a layer: each for its tokens in turn, or all in one launch.

Legend: T tokens, J chosen experts of a token, N = T * J rows, E hidden size, F size inside an
expert, X experts of this rank.
"""

from importlib.util import find_spec
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from interlock.plugins.models.layers import GatedMLP, Gating, Linear, Loader, Share, whole
from interlock.plugins.models.row_tiles import FAST

if TYPE_CHECKING:
    from interlock.plugins.models.moe import MoeSpec

GROUPED_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
"""What the grouped product multiplies: it sums in fp32, which is too little for fp64."""
MASKED_TOKENS, MASKED_ROWS = 16, 4096
"""Up to so many tokens, and rows if every expert has room for all, rows are not sorted."""


class Stacked(NamedTuple):
    """Weights of this rank's experts; `up` is gate and up, all gates first."""

    up_XFE: Tensor
    up_bias_XF: Tensor | None
    down_XEF: Tensor
    down_bias_XE: Tensor | None


class EachExpert:
    """Tokens sorted by expert once, then each expert that has some: one device read a layer."""

    capturable = False

    def __init__(self, mlps: dict[int, GatedMLP], experts: int, load: Loader) -> None:
        self.mlps, self._experts = mlps, experts
        self._adapters = load.lora.adapters

    def __call__(self, x_TE: Tensor, experts_TJ: Tensor, weights_TJ: Tensor) -> Tensor:
        """[T, E] in the weights' dtype: experts of other ranks add nothing."""
        experts_TJ, weights_TJ = in_index_order(experts_TJ, weights_TJ)
        flat_N = experts_TJ.flatten()
        order_N = flat_N.argsort(stable=True)
        counts = torch.bincount(flat_N, minlength=self._experts).tolist()
        token_N = order_N // experts_TJ.shape[1]
        rows_NE = x_TE[token_N]
        out_NE = torch.empty_like(rows_NE)
        first = 0
        for index, count in enumerate(counts):
            part = slice(first, first + count)
            first += count
            if not count:
                continue
            mlp = self.mlps.get(index)
            if mlp is None:
                out_NE[part] = 0
                continue
            with self._adapters.narrowed(token_N[part]):
                out_NE[part] = mlp(rows_NE[part])
        slot_N = torch.empty_like(order_N)
        slot_N[order_N] = torch.arange(len(order_N), device=order_N.device)
        return weighted_sum(out_NE, slot_N.view_as(experts_TJ), weights_TJ)


class GroupedExperts:
    """Two grouped products (`kernels.grouped`) for all experts; nothing is read from the device."""

    capturable = True

    def __init__(self, weights: Stacked, mine: Share, gating: Gating) -> None:
        from interlock.plugins.models.kernels import grouped

        self._kernels = grouped
        self._weights, self._mine, self._gating = weights, mine, gating

    def __call__(self, x_TE: Tensor, experts_TJ: Tensor, weights_TJ: Tensor) -> Tensor:
        """See EachExpert."""
        experts_TJ, weights_TJ = in_index_order(experts_TJ, weights_TJ)
        local_TJ, size = experts_TJ - self._mine.start, self._mine.size
        here_TJ = (local_TJ >= 0) & (local_TJ < size)
        local_TJ = torch.where(here_TJ, local_TJ, size)
        few = len(x_TE) <= MASKED_TOKENS and len(x_TE) * size <= MASKED_ROWS
        lay_out = self._kernels.masked_layout if few else self._kernels.contiguous_layout
        layout, of = lay_out(local_TJ, size, x_TE.dtype), self._weights
        product = self._kernels.grouped_product
        up_NF = product(x_TE, of.up_XFE, of.up_bias_XF, layout, gathered=True)
        inner_NF = self._gating(*up_NF.chunk(2, dim=-1))
        out_NE = product(inner_NF, of.down_XEF, of.down_bias_XE, layout, gathered=False)
        slots_TJ = layout.slots_TJ.clamp(max=layout.num_rows - 1)
        return weighted_sum(out_NE, slots_TJ, weights_TJ, None if self._all else here_TJ)

    @property
    def _all(self) -> bool:
        return self._mine.size == self._mine.total


def in_index_order(experts_TJ: Tensor, weights_TJ: Tensor) -> tuple[Tensor, Tensor]:
    """Each token's experts by rising index, so that its sum does not depend on their ranking."""
    experts_TJ, ranked_TJ = experts_TJ.sort(dim=-1)
    return experts_TJ, weights_TJ.gather(1, ranked_TJ)


def weighted_sum(
    out_NE: Tensor, slots_TJ: Tensor, weights_TJ: Tensor, here_TJ: Tensor | None = None
) -> Tensor:
    """[T, E]: each token's rows times their weights, added in order; None: all rows are here."""
    sum_TE = weights_TJ.new_zeros(len(slots_TJ), out_NE.shape[1])
    for choice in range(slots_TJ.shape[1]):
        row_TE = out_NE[slots_TJ[:, choice]].to(sum_TE.dtype)
        if here_TJ is not None:
            row_TE = row_TE.masked_fill(~here_TJ[:, choice, None], 0)
        sum_TE += row_TE * weights_TJ[:, choice, None]
    return sum_TE


def routed_experts(
    load: Loader, prefix: str, hidden: int, spec: "MoeSpec", grouped: bool | None = None
) -> EachExpert | GroupedExperts:
    """This rank's experts; `grouped` None: as one launch where they can be (`can_group`)."""
    if grouped is None:
        grouped = load.device.type == "cuda" and can_group(load)
    mine = load.share(spec.router.experts)
    one_by_one = spec.stored == "one_by_one"
    if one_by_one:
        for index in set(range(mine.total)) - set(range(mine.start, mine.stop)):
            load.leave(f"{prefix}.{index}.*")
    if one_by_one and not grouped:
        mlps = {
            index: load.gated_mlp(
                f"{prefix}.{index}", hidden, whole(spec.inner), spec.biased, spec.gating,
                names=spec.names.parts,
            )
            for index in range(mine.start, mine.stop)
        }  # fmt: skip
        return EachExpert(mlps, mine.total, load)
    stacked = (_stack if one_by_one else _fused)(load, prefix, hidden, spec, mine)
    if grouped:
        return GroupedExperts(stacked, mine, spec.gating)
    return EachExpert(_split(load, stacked, spec, mine), mine.total, load)


def can_group(load: Loader) -> bool:
    """Whether Triton is here, the dtype is one of GROUPED_DTYPES, and experts are plain matrices.

    Adapters add terms to each expert, batch-invariant rows are multiplied in tiles of theirs, and
    quantised weights by products of theirs.
    """
    plain = load.rows.numerics == FAST.numerics and not load.lora.files and load.bits == "auto"
    return plain and load.dtype in GROUPED_DTYPES and find_spec("triton") is not None


def _stack(load: Loader, prefix: str, hidden: int, spec: "MoeSpec", mine: Share) -> Stacked:
    """Experts that are stored one by one."""
    gate, up, down = spec.names.parts
    inner, outer = whole(spec.inner), whole(hidden)

    def stacked(parts: tuple[str, ...], rows: Share, inputs: int) -> tuple[Tensor, Tensor | None]:
        weights, biases = [], []
        for index in range(mine.start, mine.stop):
            names = {f"{prefix}.{index}.{part}": rows for part in parts}
            shape = rows.total, inputs
            weights.append(torch.cat([load.tensor(f"{name}.weight", shape) for name in names]))
            biases.append(load.bias(names, spec.biased))
        if all(bias is None for bias in biases):
            return torch.stack(weights), None
        none = weights[0].new_zeros(len(weights[0]))
        return torch.stack(weights), torch.stack([none if b is None else b for b in biases])

    return Stacked(*stacked((gate, up), inner, hidden), *stacked((down,), outer, spec.inner))


def _fused(load: Loader, prefix: str, hidden: int, spec: "MoeSpec", mine: Share) -> Stacked:
    """Experts that are stored as stacks."""

    def stacked(name: str, outputs: int, inputs: int) -> tuple[Tensor, Tensor | None]:
        sizes = (outputs, inputs) if spec.stored == "fused" else (inputs, outputs)
        weight = load.tensor(f"{prefix}.{name}", (mine.total, *sizes), (mine.slice,))
        bias_XO = None
        if spec.biased:
            bias_XO = load.tensor(f"{prefix}.{name}_bias", (mine.total, outputs), (mine.slice,))
        return weight if spec.stored == "fused" else weight.transpose(1, 2).contiguous(), bias_XO

    up_XFE, up_bias_XF = stacked("gate_up_proj", 2 * spec.inner, hidden)
    if spec.interleaved:
        up_XFE = _gates_first(up_XFE)
        up_bias_XF = None if up_bias_XF is None else _gates_first(up_bias_XF)
    return Stacked(up_XFE, up_bias_XF, *stacked("down_proj", hidden, spec.inner))


def _split(load: Loader, of: Stacked, spec: "MoeSpec", mine: Share) -> dict[int, GatedMLP]:
    def linear(weight_FE: Tensor, bias_XF: Tensor | None, at: int, kind: str) -> Linear:
        bias_F = None if bias_XF is None else bias_XF[at]
        return Linear(load.product(weight_FE, bias_F, kind), rows=load.rows)

    return {
        mine.start + at: GatedMLP(
            linear(of.up_XFE[at], of.up_bias_XF, at, "gate_up_proj"),
            linear(of.down_XEF[at], of.down_bias_XE, at, "down_proj"),
            spec.gating,
        )
        for at in range(mine.size)
    }


def _gates_first(stacked_XF: Tensor) -> Tensor:
    """Rows gate 0, up 0, gate 1, ... along axis 1 as all gates, then all ups."""
    return torch.cat((stacked_XF[:, 0::2], stacked_XF[:, 1::2]), dim=1)
