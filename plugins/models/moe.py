"""Mixture-of-experts MLPs: how tokens choose experts, and the experts' weighted sum.

Switch Transformer (arXiv 2101.03961, section 2); shared experts as in DeepSeekMoE (arXiv
2401.06066, section 3.2). Legend: T tokens, E hidden size, F size inside an expert, X experts,
J chosen experts.
"""

from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from interlock.plugins.models.layers import GatedMLP, Gating, Linear, Loader, swiglu, whole
from interlock.plugins.models.router import Router, RouterSpec

Stored = Literal["one_by_one", "fused", "fused_input_major"]


@dataclass(frozen=True)
class MoeNames:
    """Names under a layer's prefix; `parts` are an expert's gate, up and down projections.

    `correction` is the router's correction bias. `shared_gate` weighs the shared expert's output.
    """

    router: str = "mlp.gate"
    correction: str = "mlp.gate.e_score_correction_bias"
    experts: str = "mlp.experts"
    parts: tuple[str, str, str] = ("gate_proj", "up_proj", "down_proj")
    shared: str = "mlp.shared_experts"
    shared_gate: str = "mlp.shared_expert_gate"


@dataclass(frozen=True)
class MoeSpec:
    """Sizes of an expert layer, and how it is stored.

    `inner` is the size inside one routed expert, `shared` that inside the shared expert, which
    every token passes (0: there is none), times the sigmoid of a learned gate if `shared_gated`.

    `stored` "one_by_one": {experts}.{index}.{part}.weight. "fused": {experts}.gate_up_proj
    [X, 2 F, E] and {experts}.down_proj [X, E, F]. "fused_input_major": [X, E, 2 F] and [X, F, E].
    `interleaved`: rows of a fused gate_up_proj alternate gate and up, else all gates come first.
    `biased` fused experts have gate_up_proj_bias [X, 2 F] and down_proj_bias [X, E].
    """

    router: RouterSpec
    inner: int
    shared: int = 0
    shared_gated: bool = False
    stored: Stored = "one_by_one"
    interleaved: bool = False
    biased: bool = False
    gating: Gating = swiglu
    names: MoeNames = field(default_factory=MoeNames)


class MoeMLP:
    """The sum of each token's routed experts, by weight, and of the shared expert.

    Each rank has an equal part of the routed experts and of the shared one's inner size.
    """

    def __init__(self, load: Loader, prefix: str, hidden: int, spec: MoeSpec) -> None:
        names = spec.names
        self.ranks = load.ranks
        self.adapters = load.lora.adapters
        correction = f"{prefix}.{names.correction}"
        self.router = Router(load, f"{prefix}.{names.router}", correction, hidden, spec.router)
        build = _one_by_one if spec.stored == "one_by_one" else _fused
        self.experts = build(load, f"{prefix}.{names.experts}", hidden, spec)
        self.shared: GatedMLP | None = None
        self.shared_gate: Linear | None = None
        if spec.shared:
            inner = load.share(spec.shared)
            self.shared = load.gated_mlp(
                f"{prefix}.{names.shared}", hidden, inner, gating=spec.gating, joined=False
            )
        if spec.shared_gated:
            gate = f"{prefix}.{names.shared_gate}"
            self.shared_gate = load.linear({gate: whole(1)}, whole(hidden), False)

    def __call__(self, x_TE: Tensor) -> Tensor:
        """[T, E] -> [T, E]; a token's experts are added in index order, whatever its batch."""
        experts_TJ, weights_TJ = self.router(x_TE)
        sum_TE = torch.zeros_like(x_TE, dtype=weights_TJ.dtype)
        for index in sorted(set(experts_TJ.flatten().tolist()) & self.experts.keys()):
            token_N, choice_N = (experts_TJ == index).nonzero(as_tuple=True)
            with self.adapters.narrowed(token_N):
                out_NE = self.experts[index](x_TE[token_N])
            sum_TE[token_N] += out_NE.to(sum_TE.dtype) * weights_TJ[token_N, choice_N, None]
        routed_TE = sum_TE.to(x_TE.dtype)
        return self.ranks.sum(routed_TE if self.shared is None else routed_TE + self._shared(x_TE))

    def _shared(self, x_TE: Tensor) -> Tensor:
        assert self.shared is not None
        out_TE = self.shared(x_TE)
        if self.shared_gate is None:
            return out_TE
        return self.shared_gate.rows.apply(torch.sigmoid, self.shared_gate(x_TE)) * out_TE


def _one_by_one(load: Loader, prefix: str, hidden: int, spec: MoeSpec) -> dict[int, GatedMLP]:
    mine = load.share(spec.router.experts)
    for index in set(range(spec.router.experts)) - set(range(mine.start, mine.stop)):
        load.leave(f"{prefix}.{index}.*")
    return {
        index: load.gated_mlp(
            f"{prefix}.{index}", hidden, whole(spec.inner), spec.biased, spec.gating,
            names=spec.names.parts,
        )
        for index in range(mine.start, mine.stop)
    }  # fmt: skip


def _fused(load: Loader, prefix: str, hidden: int, spec: MoeSpec) -> dict[int, GatedMLP]:
    mine = load.share(spec.router.experts)

    def stacked(name: str, outputs: int, inputs: int) -> tuple[Tensor, Tensor | None]:
        sizes = (outputs, inputs) if spec.stored == "fused" else (inputs, outputs)
        weight = load.tensor(f"{prefix}.{name}", (mine.total, *sizes), (mine.slice,))
        bias_XO = None
        if spec.biased:
            bias_XO = load.tensor(f"{prefix}.{name}_bias", (mine.total, outputs), (mine.slice,))
        return weight if spec.stored == "fused" else weight.transpose(1, 2).contiguous(), bias_XO

    def linear(weight_FE: Tensor, bias_F: Tensor | None) -> Linear:
        return Linear(load.product(weight_FE, bias_F), rows=load.rows)

    up_XFE, up_bias_XF = stacked("gate_up_proj", 2 * spec.inner, hidden)
    down_XEF, down_bias_XE = stacked("down_proj", hidden, spec.inner)
    if spec.interleaved:
        up_XFE = _gates_first(up_XFE)
        up_bias_XF = None if up_bias_XF is None else _gates_first(up_bias_XF)
    return {
        mine.start + at: GatedMLP(
            linear(up_XFE[at], None if up_bias_XF is None else up_bias_XF[at]),
            linear(down_XEF[at], None if down_bias_XE is None else down_bias_XE[at]),
            spec.gating,
        )
        for at in range(mine.size)
    }


def _gates_first(stacked_XF: Tensor) -> Tensor:
    """Rows gate 0, up 0, gate 1, ... along axis 1 as all gates, then all ups."""
    return torch.cat((stacked_XF[:, 0::2], stacked_XF[:, 1::2]), dim=1)
