"""Mixture-of-experts MLPs: how tokens choose experts, and the experts' weighted sum.

Switch Transformer (arXiv 2101.03961, section 2); shared experts as in DeepSeekMoE (arXiv
2401.06066, section 3.2). Legend: T tokens, E hidden size, F size inside an expert, X experts,
J chosen experts.
"""

from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from interlock.plugins.models.layers import GatedMLP, Gating, Linear, Loader, whole
from interlock.plugins.models.routed import routed_experts
from interlock.plugins.models.router import Router, RouterSpec
from interlock.plugins.models.row_tiles import swiglu

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

    def __init__(
        self, load: Loader, prefix: str, hidden: int, spec: MoeSpec, grouped: bool | None = None
    ) -> None:
        """`grouped`: see `routed_experts`."""
        names = spec.names
        self.ranks = load.ranks
        correction = f"{prefix}.{names.correction}"
        self.router = Router(load, f"{prefix}.{names.router}", correction, hidden, spec.router)
        self.experts = routed_experts(load, f"{prefix}.{names.experts}", hidden, spec, grouped)
        self.capturable = self.experts.capturable
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
        routed_TE = self.experts(x_TE, *self.router(x_TE)).to(x_TE.dtype)
        return self.ranks.sum(routed_TE if self.shared is None else routed_TE + self._shared(x_TE))

    def _shared(self, x_TE: Tensor) -> Tensor:
        assert self.shared is not None
        out_TE = self.shared(x_TE)
        if self.shared_gate is None:
            return out_TE
        return self.shared_gate.rows.apply(torch.sigmoid, self.shared_gate(x_TE)) * out_TE
